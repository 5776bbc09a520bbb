"""The pages that show limits, tasks, fan-outs and workers.

::

    limits.py      all limits, one limit, its keys, its waiting tasks, its report
    tasks.py       one task
    fan_outs.py    fan-outs
    fleet.py       workers and changes
    paging.py      tables that are shown page by page
    charts.py      bar charts as geometry; templates/charts.html draws them
"""
