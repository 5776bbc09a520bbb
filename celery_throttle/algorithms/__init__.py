"""The algorithms in Python and whole numbers: twins of the Lua files beside them.

The simulation, outage mode and the tests use them; the tests run both twins side by side. No result
is rounded unless a rule says so. Time is an argument: whole microseconds of any clock. Costs are
millionths of a unit. A state is an immutable value: what is stored for one limit and key. It
belongs to the definition under which it was written.

``docs/internals.md`` says where to add an algorithm.

May import :mod:`celery_throttle.limits` and :mod:`celery_throttle.errors`.
"""
