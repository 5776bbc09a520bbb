"""Takes waiting tasks out of their lines for good: drain, move, drop and purge.

::

    handle.py      ThrottleHandle: one limit of an app, with the methods for its waiting tasks
    remove.py      the functions that it and ``Throttle(app)`` call
    withdrawal.py  claims under a lease of their own; tasks that were not disposed of are requeued
    publisher.py   drain and move: a task goes to the broker
    revoker.py     drop: a task ends as revoked
    counts.py      finds the queues and lines of the tasks; what the calls return
"""
