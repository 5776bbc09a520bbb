"""Guarded calls, the same for all clients.

::

    guard.py      the limits of one client's calls, by the quantities that the API counts
    call.py       one call: acquire, send, learn, settle
    http.py       what the calls of HTTP clients share
    body.py       bodies, watched while they pass
    transport.py  calls of httpx and httpx2
"""
