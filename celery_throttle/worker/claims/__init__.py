"""Claims: tasks that wait in lines are claimed and dispatched under leases when their time comes.

The path of a task goes through five files: ``scheduler.py`` (which shard polls), ``poller.py`` (its
polls), ``call.py`` (the one call), ``claims.py`` (what this worker holds) and ``dispatch.py`` (to
Celery).
"""
