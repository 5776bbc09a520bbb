"""The plan that settles a reservation: refunds, or debts, once the actual cost is known."""

from __future__ import annotations

from celery_throttle.limits.requirement import Costs, parse_costs
from celery_throttle.operations.acquire import Acquisition
from celery_throttle.operations.define import DefinePlans
from celery_throttle.operations.plan import MAX_COST, Plan, has_keys
from celery_throttle.store.script import Call, script


class ReservePlans(DefinePlans):
    """Plans for reservations; :meth:`acquire` with mode ``reserve`` makes one."""

    __slots__ = ()

    def settle(self, acquisition: Acquisition, actual: Costs) -> Plan[None]:
        """Settle a reservation with its actual cost in units."""
        requirement = acquisition.requirement
        keys, args = self._ref_arguments(requirement)
        names = [
            self.keys.limits,
            *keys,
            *(self.keys.waiting_lists(ref) for ref in requirement.refs),
        ]
        worth = [min(amount, MAX_COST) for amount in parse_costs(requirement.refs, actual, least=0)]
        about = [self.now(), int(has_keys(requirement.refs)), *args, *worth, *acquisition.marks]
        call = Call(script("settle"), names, about)
        self.check((yield from self.call_registered(call, requirement.refs)), [requirement])
