"""Takes waiting tasks out of their lines for good: drain, move and drop.

::

    methods.py     the methods of ``Throttle(app)``
    remove.py      the way of all three: find the tasks, claim them in batches, dispose of each
    withdrawal.py  claims under a lease of their own; tasks that were not disposed of are requeued
    publisher.py   drain and move: a task goes to the broker
    revoker.py     drop: a task ends as revoked
    search.py      finds the queues and lines of the tasks
    counts.py      what the calls return
"""
