"""Claims: tasks that wait in lines are claimed and dispatched under leases when their time comes.

The path of a task goes through four files: ``scheduler.py`` (when to poll), ``call.py`` (the one
call), ``claims.py`` (what this worker holds) and ``dispatch.py`` (to Celery).
"""
