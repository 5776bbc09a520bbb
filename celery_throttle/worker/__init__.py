"""A Celery worker with limits.

``admission`` decides whether a task may run, ``waiting`` keeps a task that may not, and ``claims``
takes tasks out of lines when their time has come. ``health`` deals with failures and
knows the other workers, and ``hooks`` attaches all of that to Celery's worker. Their parts belong
to three objects: ``worker.py`` has what a worker has once, ``shard.py`` what it has for each shard
(a set of limits with keys of their own, on one server), and ``connection.py`` what the shards share
as long as one connection to the broker lasts. May import every package of ``celery_throttle`` but
the commands.
"""
