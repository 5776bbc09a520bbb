"""Use of the quota, fullest second, deliveries and lateness of two workers under one limit.

Two prefork workers with two processes each; all tasks are sent at once. Theirs is the retry recipe
(see ``apps/recipe.py``), with the same tasks and the same limit, run right after ours.

*Quota used* is the time that the limit gives to the tasks beyond the burst, over the time from the
first start to the last. With keys it is that of the key that did worst, and the fullest second too.

*Admissions* are what the server decided, not what anybody saw. While the tasks run, ``MONITOR`` on
the limits' server (which is not the broker) shows every state that a script sets. A state of GCRA
holds the theoretical arrival time (TAT), so it tells exactly how many units were taken and from
when on each may be used: the slot is ``TAT - burst * interval``, or the time of the decision if
that is later. A second is a closed interval: it may hold ``burst + rate`` admissions and no more.

*Lateness* is a start (the first line of the task's body) less its slot. A task out of a line is
known by its id, which the claim takes out of the line right after it set the state. The few others,
which passed the gate on arrival or asked in ``before_start``, are matched in order, which can only
make them look later. *Deliveries* are messages that workers received from the broker.
"""

from __future__ import annotations

import ast
import re
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.marks import Mark
from benchmarks.results import Figure, Options, Result, percentile
from benchmarks.stage import Stage, wait_until
from celery_throttle.keys import Keys
from celery_throttle.limiter import as_ref
from celery_throttle.limits import Limit
