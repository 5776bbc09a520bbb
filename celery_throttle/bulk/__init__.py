"""Many waiting tasks at once: fan-outs put them into lines, removals take them out.

Imports Celery, and the packages up to ``tasks``.

::

    fan_out/               throttle.fan_out(): sends many tasks, and follows them by one name
    removal/               drain, move, drop, purge
    capture.py             the message that Celery would send, captured instead of sent;
                           throttle_publish = "line": sends one task to its line
    retry.py               retries while the server cannot be reached
"""
