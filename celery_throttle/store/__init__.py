"""The server that keeps the limits: a single one, one behind Sentinels, or a cluster.

Key names, scripts, connections and server errors. ``scripts/`` has one Lua file for each operation;
``scripts/lib/`` has the files that they include. May import :mod:`celery_throttle.limits` and
:mod:`celery_throttle.errors`.
"""
