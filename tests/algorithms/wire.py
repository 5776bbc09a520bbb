"""Executes plans at the same time, over one connection."""

from __future__ import annotations

import socket
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import hiredis

from celery_throttle.operations.plan import Action, Blocking, Sleep, StoreCall
from celery_throttle.store.script import Call, pack_command


class Commands(NamedTuple):
    """A further step of plans in these tests: commands that read stored data."""

    packed: Sequence[bytes]


T = TypeVar("T")
Playing = Generator[Action | Commands, Any, T]


class Wire:
    """A connection to the server, for many calls at once."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port or 6379))
        self._reader = hiredis.Reader()
        self._loaded: set[str] = set()

    def run(self, steps: Sequence[Call | Commands]) -> list[Any]:
        """Send all steps, then read a reply for each call, and a list of replies for commands."""
        packed: list[bytes] = []
        for step in steps:
            if isinstance(step, Call) and step.script.sha not in self._loaded:
                self._loaded.add(step.script.sha)
                self.ask(pack_command("SCRIPT", "LOAD", step.script.source))
            packed += [step.packed] if isinstance(step, Call) else step.packed
        replies = iter(self.ask(*packed))
        return [
            next(replies) if isinstance(step, Call) else [*islice(replies, len(step.packed))]
            for step in steps
        ]

    def ask(self, *commands: bytes) -> list[Any]:
        """Send commands, then read their replies."""
        self._socket.sendall(b"".join(commands))
        replies = [self._read() for _ in commands]
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
        return replies

    def _read(self) -> Any:
        reply = self._reader.gets()
        while reply is False:
            self._reader.feed(self._socket.recv(65536))
            reply = self._reader.gets()
        return reply

    def close(self) -> None:
        self._socket.close()


def together(wire: Wire, plans: Sequence[Playing[None]]) -> None:
    """Execute plans at the same time: one round trip for the next call of each.

    One plan after the other would take twice as long.
    """
    steps = [(plan, _next(plan, None)) for plan in plans]
    while waiting := [(plan, step) for plan, step in steps if step is not None]:
        replies = wire.run([step for _, step in waiting])
        steps = [
            (plan, _next(plan, reply)) for (plan, _), reply in zip(waiting, replies, strict=True)
        ]


def _next(plan: Playing[None], answer: object) -> Call | Commands | None:
    try:
        step = plan.send(answer)
    except StopIteration:
        return None
    assert not isinstance(step, (StoreCall, Sleep, Blocking))  # all is at home
    return step
