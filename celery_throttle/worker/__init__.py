"""A Celery worker with limits.

``admission`` decides whether a task may run, ``waiting`` keeps a task that may not, and ``claims``
takes tasks out of lines when their time has come. ``health`` deals with failures, ``membership``
knows the other workers, ``hooks`` attaches all of that to Celery's worker, and ``wiring.py`` builds
the parts. May import every package of ``celery_throttle`` but the commands.
"""
