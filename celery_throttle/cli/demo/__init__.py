"""The demo: one limit at work in two real workers, measured and drawn.

::

    command.py    the command and its options
    run.py        starts the server and the workers, sends tasks, reads events
    tasks.py      the Celery app of the sender and the workers
    record.py     the events of a run, and its figures
    picture.py    a record as charts

The demo starts a private server in a temporary directory, unless a URL is given. On a given server,
all its keys share a random prefix and are deleted at the end.
"""
