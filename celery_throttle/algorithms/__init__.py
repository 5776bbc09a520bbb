"""The algorithms in Python and whole numbers: twins of the Lua files beside them.

The simulation, outage mode and the tests use them; the tests run both twins side by side. No result
is rounded unless a rule says so. Time is an argument: whole microseconds of any clock. Costs are
millionths of a unit. A state is an immutable value: what is stored for one limit and key. It
belongs to the definition under which it was written.

To add an algorithm: write ``x.lua`` with the functions that ``lib/definition.lua`` lists
(``lib`` is ``store/scripts/lib``), and ``x.py``, or a class in the file of its family, with the
methods of :mod:`.state`. Then add its name to ``ALGORITHMS`` in ``limits/grammar.py`` and to
``STATE_CLASSES`` in ``definition.py``, its tag to ``store/definitions.py`` and
``lib/definition.lua``, its numbers to ``_own_numbers`` beside the former, and itself to
``lib/algorithm_registry.lua``; unless it admits steadily, its windows to ``forecasts/capacity.py``.

May import :mod:`celery_throttle.limits` and :mod:`celery_throttle.errors`.
"""
