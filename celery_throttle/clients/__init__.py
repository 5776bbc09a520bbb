"""Clients of external APIs: they acquire limits before each request and learn from answers.

Imports the limiter and the layers below it. Each wrapper module also imports its client.

::

    guard.py         the limits of one client's calls, by the quantities that the API counts
    call.py          one call: acquire, send, learn, settle
    profile.py       what a vendor documents about its limits, as data
    profiles/        the profiles of vendors
    answer.py        the answers of all clients in one form
    reading.py       what an answer says, by a profile
    header_values.py how answers write numbers, times and lists
    body.py          bodies, watched while they pass
    sdk.py, sdks/    clients of SDKs
    transport.py, httpx.py, httpx2.py, requests.py, urllib3.py, aiohttp.py   HTTP clients
    grpc.py          interceptors of gRPC
    wrapped.py       any function, such as a method of an SDK
"""
