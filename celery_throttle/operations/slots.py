"""Plans for slots that are held: release and renew."""

from __future__ import annotations

from collections.abc import Sequence

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.plan import LimitPlans, Plan
from celery_throttle.store.script import Call, script


class SlotPlans(LimitPlans):
    """Plans for slots that are held; :meth:`acquire` with mode ``slot`` takes them."""

    __slots__ = ()

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
