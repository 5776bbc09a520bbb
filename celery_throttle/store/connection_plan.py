"""Connection plans: I/O in several steps, written once for blocking code and for asyncio.

A plan, such as finding the server in charge, is a generator that yields :class:`Connect` and
:class:`Send`. :func:`perform` and :func:`aperform` execute its steps.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_throttle.store.address import Address
from celery_throttle.store.connection import AsyncConnection, Connection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connect:
    """A step whose result is a new connection."""

    address: Address

    def run(self) -> Connection:
        """Execute the step."""
        return Connection.open(self.address)

    async def arun(self) -> AsyncConnection:
        """:meth:`run` for asyncio."""
        return await AsyncConnection.open(self.address)


@dataclass(frozen=True, slots=True)
class Send:
    """A step that sends packed commands; its result is the reply to the last one.

    For :func:`aperform` the connection is an :class:`AsyncConnection`.
    """

    connection: Any
    commands: tuple[bytes, ...]

    def run(self) -> Any:
        """Execute the step."""
        self.connection.send(b"".join(self.commands))
        return [self.connection.read() for _ in self.commands][-1]

    async def arun(self) -> Any:
        """:meth:`run` for asyncio."""
        self.connection.send(b"".join(self.commands))
        return [await self.connection.read() for _ in self.commands][-1]


ConnectionPlan = Generator[Connect | Send, Any, T]


def perform(plan: ConnectionPlan[T]) -> T:
    """Execute a plan, blocking. An error of a step is raised in the plan, where it was yielded."""
    try:
        step = next(plan)
        while True:
            try:
                result = step.run()
            except BaseException as error:  # noqa: BLE001, PERF203  # raised in the plan
                step = plan.throw(error)
            else:
                step = plan.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration is not generic


async def aperform(plan: ConnectionPlan[T]) -> T:
    """:func:`perform` for asyncio."""
    try:
        step = next(plan)
        while True:
            try:
                result = await step.arun()
            except BaseException as error:  # noqa: BLE001, PERF203  # raised in the plan
                step = plan.throw(error)
            else:
                step = plan.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
