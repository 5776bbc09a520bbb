"""What limits and waiting tasks look like now, and how they have been: values, and plans that read.

Each plan reads as much as it returns, page by page where there may be much. The commands, the
web page, the metrics and the worker's reports show these values. Imports ``operations`` and what
is below it.

::

    observer.py  what all plans use: the limits of the code, the names of keys, the clock
    values.py    the values that the plans return; totals.py: the counters
    status/      limits, waiting tasks, workers, fan-outs, changes, what was counted in a time
    report.py    what was counted, with advice
    merged.py    one value of those of several shards
    nodes.py     how busy shards and nodes are
    forecasts/   when the waiting tasks will have started
    metrics/     the figures of all limits for monitoring, and Prometheus
    text.py, status_text.py  the values as words and as JSON
"""
