"""Tools for tests of code that uses limits: a clock, and a record of the tasks that ran.

::

    clock.py           ManualClock
    runs.py            TaskRuns, a record of the tasks of a test
    pytest_plugin.py   the fixtures, the marker and the setting
    switch.py          decides limits elsewhere, or not at all, for the time of a test
    server.py          starts a private server; the demo uses it as well
    session_server.py  the private server of a session of tests
    processes.py       processes that end with this one, by tether.py
    environment.py     refuses tests whose broker is not the one that their settings name
    names.py           names of fixtures, markers and settings, and errors for those that are wrong

Celery is imported when a test needs it, and not before. Imports any package but ``cli``.
"""

from celery_throttle.testing.clock import ManualClock
from celery_throttle.testing.runs import TaskRun, TaskRuns

__all__ = ["ManualClock", "TaskRun", "TaskRuns"]
