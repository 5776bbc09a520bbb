"""Plans after an acquisition: settle a reservation, apply feedback, release and renew slots."""

from __future__ import annotations

from collections.abc import Sequence

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import pause_to_seconds, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Costs, Requirement, parse_costs
from celery_throttle.operations.acquire import AcquirePlans, Acquisition
from celery_throttle.operations.author import API, Author
from celery_throttle.operations.plan import MAX_COST, Plan, has_keys
from celery_throttle.store.script import Argument, Call, script


class Plans(AcquirePlans):
    """All plans of a limiter: those that define and acquire, and those after an acquisition."""

    __slots__ = ()

    def settle(self, acquisition: Acquisition, actual: Costs) -> Plan[None]:
        """Settle a reservation, made with mode ``reserve``, with its actual cost in units."""
        requirement = acquisition.requirement
        refs, keys = requirement.refs, self.keys
        names, args = self._ref_arguments(requirement)
        waits = [keys.waiting_lists(ref) for ref in refs]
        names = [keys.limits, *names, *waits, keys.totals()]
        worth = [min(amount, MAX_COST) for amount in parse_costs(refs, actual, least=0)]
        about = [self.now(), int(has_keys(refs)), *args, *worth, *acquisition.marks]
        call = Call(script("settle"), names, about)
        self.check((yield from self.call_registered(call, refs)), [requirement])

    def learn(self, requirement: Requirement, feedback: Feedback) -> Plan[float]:
        """Apply feedback to limits; return the seconds for which it stops them.

        That is infinity if one of them is paused until it is resumed.
        """
        names, about = self._ref_arguments(requirement)
        stop = -1 if feedback.stop is None else to_us(feedback.stop)
        left = [feedback.left_of(ref.name) for ref in requirement.refs]
        lefts = [-1 if one is None else min(one, MAX_UNITS) * MILLION for one in left]
        answer: list[Argument] = [int(feedback.refused), stop, to_us(feedback.took)]
        answer.append(_author_of(feedback).pack())
        args = [self.now(), int(has_keys(requirement.refs)), *about, *lefts, *answer]
        keys = self.keys
        for ref in requirement.refs:
            names += (keys.pause_origin(ref), keys.paused_keys(ref.name))
        call = Call(script("learn"), [keys.limits, *names, keys.totals()], args)
        reply = yield from self.call_registered(call, requirement.refs)
        self.check(reply, [requirement])
        return pause_to_seconds(reply[1])

    def release(self, refs: Sequence[LimitRef], holder: str) -> Plan[None]:
        """Release the slots of a holder."""
        keys = self.keys
        names = [name for ref in refs for name in (keys.entries(ref), keys.waiting_lists(ref))]
        yield Call(script("release"), names, [self.now(), holder])

    def renew(self, slots: Sequence[tuple[LimitRef, str]], lease: float) -> Plan[None]:
        """Renew the leases of slots, each a limit and a holder, for ``lease`` seconds from now."""
        yield self.renew_call([(self.keys.entries(ref), holder) for ref, holder in slots], lease)

    def renew_call(
        self, slots: Sequence[tuple[str, str]], lease: float, *, anew: bool = False
    ) -> Call:
        """Return the call of :meth:`renew`, for slots by the keys of their entries.

        ``anew``: also adds slots that the server does not know.
        """
        holders = [holder for _, holder in slots]
        args = [self.now(), to_us(lease), int(anew), *holders]
        entries = [entries for entries, _ in slots]
        keys = self.keys
        names = [*entries, *map(keys.key_cap_of, entries), *map(keys.state_of, entries)]
        return Call(script("renew"), names, args)


def _author_of(feedback: Feedback) -> Author:
    what = "it refused a request" if feedback.refused else "its answer"
    asked = "" if feedback.stop is None else f", and asked to stop for {feedback.stop:g} s"
    return Author(API, what + asked)
