"""The counters that the scripts keep of each limit; see ``counters.lua``.

A counter is of a name, not of its keys. A task that needs several limits counts at each of them.
"""

from __future__ import annotations

#: Why calls outside lines are refused: no units or slots are left, the limit is paused, as many
#: keys as may are in use, or the cost can never pass.
REFUSAL_REASONS = ("limit", "slots", "paused", "keys", "cost")

#: Why tasks do not join a line: they would wait longer than their ``throttle_max_wait``, as many
#: tasks wait as may, as many keys as may are in use, or the cost can never pass.
DROP_REASONS = ("late", "full", "keys", "cost")

#: The number of buckets of waits, and the longest wait of the first one in seconds. Each following
#: bucket is twice as long. Twin: ``serve_list.lua``.
WAIT_BUCKETS, FIRST_WAIT_SECONDS = 21, 0.1
