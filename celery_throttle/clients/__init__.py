"""Clients of external APIs: they acquire limits before each request and learn from responses.

Imports the limiter and the layers below it. Each wrapper module also imports its client.

::

    guard.py             the limits of one client's calls
    guarded_call.py      one call: begin, send, report, end
    http.py              what all HTTP clients share
    httpx.py, requests.py, aiohttp.py   the wrappers of these clients
    wrapped.py           any function, such as a method of an SDK
    response_headers.py  what a response says about limits
    header_values.py     how headers write numbers, times and lists
"""
