"""Clients of external APIs: they acquire limits before each request and learn from answers.

Imports the limiter and the layers below it. Each wrapper module also imports its client.

::

    calls/       one guarded call: acquire, send, learn, settle
    profiles/    what vendors document about their limits, and how answers are read by that
    answer.py    the answers of all clients in one form
    httpx.py, httpx2.py, requests.py, urllib3.py, aiohttp.py   HTTP clients
    grpc.py      interceptors of gRPC
    sdk.py, sdks/   clients of SDKs
    wrapped.py   any function, such as a method of an SDK
"""
