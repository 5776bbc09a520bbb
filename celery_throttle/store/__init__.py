"""One server that keeps the limits: a single one, one behind Sentinels, or a cluster.

Names of keys, scripts, connections and what the server's errors mean. May import
:mod:`celery_throttle.limits` and :mod:`celery_throttle.errors`.

``scripts/`` has one Lua file for each operation; ``scripts/lib/`` has the files that they include.
"""
