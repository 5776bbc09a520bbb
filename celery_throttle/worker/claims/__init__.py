"""Claims: tasks that wait in lines are claimed and dispatched under leases when their time comes.

The path of a task goes through four files: ``poller.py`` (which shard polls, and its polls),
``call.py`` (the one call), ``claim.py`` in the folder above (what this worker holds) and
``dispatch.py`` (to Celery, which brings it to the gate as any other).
"""
