"""The plan that applies feedback from an answer to its limits."""

from __future__ import annotations

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import pause_to_seconds, to_us
from celery_throttle.limits.feedback import Heard
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.define import DefinePlans
from celery_throttle.operations.plan import Plan, has_keys
from celery_throttle.store.script import Call, script


class FeedbackPlans(DefinePlans):
    """Plans for feedback."""

    __slots__ = ()

    def learn(self, requirement: Requirement, heard: Heard) -> Plan[float]:
        """Apply feedback to limits; return the seconds for which it stops them.

        That is infinity if one of them is paused until it is resumed.
        """
        names, about = self._ref_arguments(requirement)
        stop = -1 if heard.stop is None else to_us(heard.stop)
        left = [heard.left_of(ref.name) for ref in requirement.refs]
        lefts = [-1 if one is None else min(one, MAX_UNITS) * MILLION for one in left]
        answer = [int(heard.refused), stop, to_us(heard.took)]
        args = [self.now(), int(has_keys(requirement.refs)), *about, *lefts, *answer]
        call = Call(script("learn"), [self.keys.limits, *names], args)
        reply = yield from self.call_registered(call, requirement.refs)
        self.check(reply, [requirement])
        return pause_to_seconds(reply[1])
