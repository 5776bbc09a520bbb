"""The server that keeps the limits: a single one, one behind Sentinels, or a cluster.

May import :mod:`celery_throttle.limits` and :mod:`celery_throttle.errors`.

::

    client.py            Store: runs scripts on the server
    connections.py       the connections of a store
    connection.py        a blocking connection; async_connection.py: one for asyncio
    topology.py          finds the server in charge
    breaker.py           stops calls to a server that does not answer
    server_errors.py     error replies, and the remedy for each
    steps.py             work that is written once for blocking callers and for asyncio
    pending.py           calls whose replies are read later
    url.py               the URL of the server
    keys.py              the names of all keys and channels
    definitions.py       the definitions of limits, as the scripts store them
    script.py            builds the scripts
    scripts/             a Lua file for each operation; scripts/lib/: what they share
"""
