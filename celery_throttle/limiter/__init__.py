"""Limits without Celery: the limiter, and the handle of one limit.

::

    limiter.py        Limiter: several limits in one call, and all limits
    handle.py         LimitHandle: one limit, or one key of it, with all operations
    arguments.py      the limits, keys and costs that clients and web apps are given
    leases.py         reservations, and slots that are held under a lease
    lease_renewer.py  renews these leases, in one thread of a process
    sharded.py        what is not about one limit and key, for limits in several shards
    parts.py          the part of each shard, and the plans that run each operation there
    moves.py          moves limits from one shard to another
    core.py           requirements and the execution of plans; all of the above build on it
    backend.py        where limits are decided: on a server, in memory, or not at all
"""
