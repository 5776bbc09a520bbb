"""Metrics of all limits, read from the server when they are scraped.

The server counts for the whole fleet, so any one process shows the metrics of all of them.
``figures.py`` reads them, ``table.py`` defines each metric, ``prometheus.py`` serves them. Only
``prometheus.py`` imports prometheus-client.
"""
