"""Limits without Celery: several limits in one call, and all limits.

The ``Throttle`` of an app is also a limiter. ``x()`` and ``ax()`` execute the same plan of
:mod:`celery_throttle.operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limiter.backend import (
    disabled_backend,
    make_backend,
    pause_all,
    resume_all,
)
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limiter.leases import Reservation, Slot, reserve_steps
from celery_throttle.limiter.parts import (
    MakePart,
    Parts,
    backend_of_parts,
    check_urls,
)
from celery_throttle.limiter.sharded import ShardedCore
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import Duration, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import ItemLike, RefLike, parse_refs
from celery_throttle.limits.rate import check_whole
from celery_throttle.limits.requirement import Costs, LimitByKey, LimitsLike, parse_definitions
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.limits.shards import parse_shards
from celery_throttle.observe.merged import merge_pages
from celery_throttle.observe.status.limits import read_page
from celery_throttle.observe.status.records import record_totals
from celery_throttle.observe.status.stored import CHANGE_ID, read_changes
from celery_throttle.observe.status.tasks import TaskStatus, explain_task
from celery_throttle.observe.values import Change, Status
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Clock
from celery_throttle.operations.rules import FileRules, author_of_file
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys
from celery_throttle.store.steps import arun_steps, run_steps


class Limiter(ShardedCore):
    """Limits on one server, shared by all clients that use their names.

    ``limiter["api"]`` is the limit ``api``, and ``limiter["mail", "tenant-42"]`` is one key of the
    limit ``mail``. Most code uses these handles, which have every operation of one limit. The
    methods of the limiter act on several limits at once. Their first argument, ``limits``, has
    names, or handles such as ``limiter["mail", 42]``; 1 to 1,000, each once. A cost (``cost``,
    ``most``) is taken from each limit. ``cost`` may also be a mapping of limit names to units; for
    a limit that it does not contain, the cost is 1. All else (``max_wait``, ``lease``, the result,
    the errors) is as for the method of the same name of
    :class:`~celery_throttle.limiter.handle.LimitHandle`.

    A limiter connects to the server when it is first used. Its methods raise
    :class:`UnknownLimitError` if a limit is not defined, and :class:`StoreUnavailableError` if the
    server cannot be reached. Limits in memory, and disabled limits, have no status:
    :class:`ConfigurationError`.

    Args:
        url: The URL of the server: ``redis://``, ``rediss://``, ``unix://``, ``valkey://``,
            Sentinels, or a cluster; see :doc:`/how-to/servers`. ``"memory://"`` needs no server:
            the limits are in the memory of this limiter, with the same decisions. It is for tests.
        limits: The limits of the code, by name. Each is text (``"100/s burst 20"``), a
            :class:`Limit`, or a list of these, all of which must allow. A definition at run time or
            in the rules file takes precedence. Default: none.
        prefix: The prefix of all keys in Redis. Redis Cluster needs a hash tag (``{...}``) in it.
        timeout: Seconds to connect, and to wait for each reply, 0.01 to 60; default 1. In asyncio,
            time in which the event loop is blocked does not count. After a timeout, one call per
            second tests the server, and all others fail at once.
        clock: A clock that replaces the server's, for tests: no call sleeps. Default: the server's.
        enabled: False allows every request, calls no server, and logs a warning. Default True.
        shards: The shards by name, to which limits are assigned, each with keys of its own:
            ``{"mail": {"limits": ["mail*"]}}``. ``by_key`` divides the keys of its limits among
            that many shards; ``url`` is another server. Default: all limits are in one shard. A
            call takes units from limits of one shard only.

    Raises:
        LimitError: A definition is wrong.
        ConfigurationError: The URL cannot be used, or cannot be used with this prefix.

    Example:
        >>> limiter = Limiter("memory://", {"api": "10/s burst 2"})
        >>> limiter["api"].acquire(2).remaining
        0
        >>> limiter["api"].try_acquire().allowed
        False
    """

    def __init__(
        self,
        url: str,
        limits: Mapping[str, LimitsLike] | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 1.0,
        clock: Clock | None = None,
        enabled: bool = True,
        shards: Mapping[str, Any] | None = None,
    ) -> None:
        self.limits = parse_definitions(limits or {})
        for name, written in (limits or {}).items():
            if isinstance(written, LimitByKey):
                raise LimitValueError(
                    f"limit {name!r} is a LimitByKey, which only apps look up; allowed: in a "
                    f"Throttle, or its default, {shown(written.default)}"
                )
        self.keys = Keys(prefix)
        self.clock = clock
        shard_map = parse_shards(shards or {}, "shards")
        check_urls(shard_map, url, "shards")
        if enabled and shard_map.entries:
            make = MakePart(url, self.limits, prefix, timeout, clock)
            self.backend = backend_of_parts(Parts(shard_map, make))
        elif enabled:
            self.backend = make_backend(url, self.limits, self.keys, timeout=timeout, clock=clock)
        else:
            reason = "the limiter was made with enabled=False"
            self.backend = disabled_backend(self.limits, self.keys, reason)

    def __getitem__(self, item: ItemLike) -> LimitHandle:
        """Return the handle of a limit, ``limiter["api"]``, or of one key, ``limiter["mail", 42]``.

        Args:
            item: The name of the limit, or a pair of name and key. A key of several parts is a
                tuple: ``limiter["mail", (42, "eu")]``. The limit need not be defined yet.

        Raises:
            LimitError: The text is not a valid name of a limit.
            KeyValueError: The key has a type that is not allowed.
        """
        return self.find_handle(item, LimitHandle)

    def acquire(
        self, limits: Iterable[RefLike], cost: Costs = 1, *, max_wait: float = 0.0
    ) -> Decision:
        """Take ``cost`` units from every limit, or raise :class:`Throttled` and take none.

        A caller outside tasks cannot join a line. It may get units before tasks that wait in lines.
        If a :class:`Throttle` raises :class:`Throttled` in a task that a worker runs, the task
        joins its line.

        Example:
            >>> limiter = Limiter("memory://", {"api": "100/s burst 20", "mail": "10/m"})
            >>> limiter.acquire(["api", limiter["mail", "tenant-42"]]).allowed
            True
        """
        return self.take(self.require(limits, cost), max_wait)

    async def aacquire(
        self, limits: Iterable[RefLike], cost: Costs = 1, *, max_wait: float = 0.0
    ) -> Decision:
        """The asyncio twin of :meth:`acquire`."""
        return await self.atake(self.require(limits, cost), max_wait)

    def try_acquire(
        self, limits: Iterable[RefLike], cost: Costs = 1, *, max_wait: float | None = 0.0
    ) -> Decision:
        """Take ``cost`` units from every limit, or none; the decision says which.

        A refusal is not an error, within a task either: the task does not join a line.

        Example:
            >>> limiter = Limiter("memory://", {"news": "1/h", "mail": "10/m"})
            >>> [bool(limiter.try_acquire(["news", "mail"])) for _ in range(2)]
            [True, False]
        """
        return self.try_take(self.require(limits, cost), max_wait)

    async def atry_acquire(
        self, limits: Iterable[RefLike], cost: Costs = 1, *, max_wait: float | None = 0.0
    ) -> Decision:
        """The asyncio twin of :meth:`try_acquire`."""
        return await self.atry_take(self.require(limits, cost), max_wait)

    def acquire_up_to(self, limits: Iterable[RefLike], most: Cost) -> Decision:
        """Take as many units as all limits allow, at most ``most``, the same number from each."""
        return self.run_plan(self.acquire_up_to_plan(limits, most))

    async def aacquire_up_to(self, limits: Iterable[RefLike], most: Cost) -> Decision:
        """The asyncio twin of :meth:`acquire_up_to`."""
        return await self.arun_plan(self.acquire_up_to_plan(limits, most))

    def peek(self, limits: Iterable[RefLike], cost: Costs = 1) -> Decision:
        """Return the decision that :meth:`try_acquire` would return now, and take nothing."""
        return self.run_plan(self.plans.peek(self.require(limits, cost, least=0)))

    async def apeek(self, limits: Iterable[RefLike], cost: Costs = 1) -> Decision:
        """The asyncio twin of :meth:`peek`."""
        return await self.arun_plan(self.plans.peek(self.require(limits, cost, least=0)))

    def reserve(
        self, limits: Iterable[RefLike], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """Take an estimated cost now; settle it when the actual cost (tokens, bytes) is known.

        Example:
            >>> limiter = Limiter("memory://", {"tokens": "40000/day using fixed-window"})
            >>> reservation = limiter.reserve(["tokens"], 1500)
            >>> reservation.settle(1320)
            >>> limiter["tokens"].peek().remaining
            38680
        """
        steps = reserve_steps(self, self.require(limits, cost), max_wait)
        return Reservation(self, run_steps(steps))

    async def areserve(
        self, limits: Iterable[RefLike], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """The asyncio twin of :meth:`reserve`."""
        steps = reserve_steps(self, self.require(limits, cost), max_wait)
        return Reservation(self, await arun_steps(steps))

    def slot(
        self,
        limits: Iterable[RefLike],
        cost: Costs = 1,
        *,
        max_wait: float = 0.0,
        lease: float = 30.0,
    ) -> Slot:
        """Return a context manager that holds a slot of every limit that has slots.

        From limits with a rate it takes units as :meth:`acquire` does, all or nothing.

        Example:
            >>> limiter = Limiter("memory://", {"github": "1 at once"})
            >>> with limiter.slot(["github"], max_wait=2.0):
            ...     limiter["github"].peek().allowed
            False
        """
        return Slot(self, self.require(limits, cost), max_wait, lease)

    def learn(self, limits: Iterable[RefLike], feedback: Feedback) -> float:
        """Apply the feedback of an API's answer to the limits that the request passed.

        It returns the longest stop of the limits.
        """
        return self.run_plan(self.learn_plan(dict.fromkeys(parse_refs(limits), feedback)))

    async def alearn(self, limits: Iterable[RefLike], feedback: Feedback) -> float:
        """The asyncio twin of :meth:`learn`."""
        return await self.arun_plan(self.learn_plan(dict.fromkeys(parse_refs(limits), feedback)))

    def status(self, *, after: str = "", most: int = 100) -> Status:
        """Return the status of all limits, page by page, in the order of their names.

        Args:
            after: The name after which the page begins: ``next`` of the previous page. Default:
                return the first page.
            most: The most limits on a page, 1 or more; default 100.

        Raises:
            LimitValueError: ``most`` is no whole number above 0.
        """
        check_whole("most", most)
        reading = self.read(lambda observer: read_page(observer, after, most))
        if len(reading.values) <= 1:
            return reading.merged()
        page = merge_pages([*reading.values.values()], most)
        return replace(page, lost_shards=(*reading.lost,))

    def explain(self, task_id: str) -> TaskStatus:
        """Return where a task is, and why it does not run yet.

        Args:
            task_id: The id of the task. An unknown id is not an error; its location is
                ``"unknown"``.
        """
        reading = self.read(lambda observer: explain_task(observer, task_id, self.task_name))
        found = reading.merged()
        return reading.complete() if found.location == "unknown" else found

    def changes(self, *, most: int = 100, before: str | None = None) -> list[Change]:
        """Return the changes of limits, the newest first. The server keeps the last 1,000.

        Args:
            most: The most changes to return, 1 or more; default 100.
            before: The ``id`` of a change: return only older changes. Default: begin with the
                newest change.

        Raises:
            LimitValueError: ``most`` is no whole number above 0, or ``before`` no id of a change.
        """
        check_whole("most", most)
        if before is not None and not (isinstance(before, str) and CHANGE_ID.fullmatch(before)):
            raise LimitValueError(f"before is {shown(before)}; allowed: the id of a change")
        return self.read(lambda observer: read_changes(observer, most, before)).complete()[:most]

    def pause_all(
        self, lasts: Duration | None, *, reason: str | None = None, by: str | None = None
    ) -> list[str]:
        """Pause every limit that is defined, one after the other.

        A limit that is defined later is not paused.

        Args:
            lasts: The duration, 0 to 1e9 seconds, text such as ``"10m"``, or a ``timedelta``; None:
                until it is resumed. A call never shortens a pause that is already in force.
            reason: The reason, up to 500 characters; recorded with the changes.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Returns:
            The names of the limits.

        Raises:
            LimitValueError: ``lasts`` is out of range, or no duration.
        """
        return self.run_plan(pause_all(self.plans, lasts, Author.of(by, reason)))

    def resume_all(self, *, reason: str | None = None, by: str | None = None) -> list[str]:
        """Lift the pauses of all limits.

        Pauses of single keys and of fan-outs stay. The call also lifts pauses that do not come from
        :meth:`pause_all`.

        Args:
            reason: See :meth:`pause_all`.
            by: See :meth:`pause_all`.

        Returns:
            The names of the limits that were paused.
        """
        return self.run_plan(resume_all(self.plans, Author.of(by, reason)))

    def register(self) -> None:
        """Put the limits of the code in force, unless the rules file or a definition replaces them.

        Workers do this when they start. Any other process adds missing limits to the server when it
        first uses them, and changes existing limits only by this call.
        """
        self.run_plan(self.plans.register(self.code_limits))

    def record_totals(self) -> None:
        """Record the totals of all limits, for reports; workers do this every ten seconds."""
        self.read(record_totals).complete()


def apply_rules(
    limiter: Limiter,
    rules: Rules,
    source: str,
    *,
    modified: float | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> bool:
    """Put the rules of a file in force, all at once, in place of the rules in force.

    Definitions and weights that were set at run time stay in force; when they end, the rules
    apply. Units in use stay in use, as after a definition at run time.

    Args:
        limiter: The limiter, or the ``Throttle``.
        rules: The rules, see :func:`~celery_throttle.limits.rules.file.load_rules`.
        source: The path of the file, recorded with the change.
        modified: When the file was modified, in seconds since 1970. If the rules in force were
            modified later, the call changes nothing. None (the default): now, so that the call
            always replaces the rules in force.
        by: The author, up to 500 characters. Default: the user and host of this process.
        reason: The reason, up to 500 characters. Default: the name of the file.

    Returns:
        Whether the rules are in force.

    Raises:
        RulesError: A limit would switch between a rate and slots. The call changed nothing.
        StoreUnavailableError: The server cannot be reached.
    """
    file = FileRules(rules, source, to_us(modified or 0))
    author = author_of_file(source, by, reason)
    plan = limiter.plans.apply_rules(file, author, is_new=modified is None)
    return limiter.run_plan(plan).accepted
