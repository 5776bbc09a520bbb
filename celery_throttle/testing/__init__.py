"""Tools for tests of code that uses limits: a clock, and a record of the tasks that ran.

::

    clock.py           ManualClock
    runs.py            TaskRuns, a record of the tasks of a test
    pytest_plugin.py   the fixtures, the marker and the setting
    switch.py          decides limits elsewhere, or not at all, for the time of a test
    server.py          starts a private server; the demo uses it as well
    tether.py          ends a process with this one

Celery is imported when a test needs it, and not before. Imports any package but ``cli``.
"""

from celery_throttle.testing.clock import ManualClock
from celery_throttle.testing.runs import TaskRun, TaskRuns

__all__ = ["ManualClock", "TaskRun", "TaskRuns"]
