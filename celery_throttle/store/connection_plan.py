"""Steps over wires, written once and carried out by code that waits or by asyncio.

What takes several, such as finding the server that is in charge, is a generator of
:class:`Connect` and :class:`Ask`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_throttle.store.address import Address
from celery_throttle.store.connection import AsyncWire, Wire

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connect:
    """A step that gives a new wire."""

    address: Address

    def run(self) -> Wire:
        """Carry it out."""
        return Wire.open(self.address)

    async def arun(self) -> AsyncWire:
        """The same for asyncio."""
        return await AsyncWire.open(self.address)


@dataclass(frozen=True, slots=True)
class Ask:
    """A step that sends commands and gives the last reply to them.

    Attributes:
        wire: of the kind of the end that carries it out.
        commands: packed.
    """

    wire: Any
    commands: tuple[bytes, ...]

    def run(self) -> Any:
        """Carry it out."""
        self.wire.send(b"".join(self.commands))
        return [self.wire.read() for _ in self.commands][-1]

    async def arun(self) -> Any:
        """The same for asyncio."""
        self.wire.send(b"".join(self.commands))
        return [await self.wire.read() for _ in self.commands][-1]


Steps = Generator[Connect | Ask, Any, T]


def perform(steps: Steps[T]) -> T:
    """Carry out steps, waiting for each. What one raises is raised where it was yielded."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
        answer = failure = None
        try:
            answer = step.run()
        except BaseException as error:  # noqa: BLE001  # raised above
            failure = error


async def aperform(steps: Steps[T]) -> T:
    """:func:`perform` for asyncio."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
        answer = failure = None
        try:
            answer = await step.arun()
        except BaseException as error:  # noqa: BLE001  # raised above
            failure = error
