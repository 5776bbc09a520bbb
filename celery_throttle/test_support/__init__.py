"""What the pytest plugin is made of; see ``celery_throttle/pytest_plugin.py``.

::

    switch.py       decides limits elsewhere, or not at all, for the time of a test
    server.py       a private server for a session of tests
    environment.py  refuses tests whose broker is not the one that their settings name
    names.py        names of fixtures, markers and settings, and errors for those that are wrong

Celery is imported when a test needs it, and not before. Imports any package but ``cli``.
"""
