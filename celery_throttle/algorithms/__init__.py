"""The algorithms in Python and whole numbers: twins of the Lua files beside them.

The simulation, outage mode and the tests use them; the tests run both twins side by side. No result
is rounded unless a rule says so. Time is an argument: whole microseconds of any clock. Costs are
millionths of a unit. A state is an immutable value: what is stored for one limit and key. It
belongs to the definition under which it was written.

To add an algorithm, write ``x.lua`` and ``x.py``, and add its name to
:data:`celery_throttle.limits.grammar.ALGORITHMS`, its tag to
:data:`celery_throttle.store.definitions.TAGS` and its class to
:data:`celery_throttle.algorithms.definition.STATE_CLASSES`.

May import :mod:`celery_throttle.limits` and :mod:`celery_throttle.errors`.
"""
