"""Which gate decides about a request: that of the shard of its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Gates(NamedTuple):
    """The gates of a worker, one for each shard."""

    only: Any  #: of a worker with one shard, else None; a look-up for each request would cost time
    find: Callable[[Any], Any]  #: returns the gate of a request


def attach_gates(app: Any, gates: Sequence[Any], find: Callable[[Any], Any]) -> None:
    """Let the requests of an app pass the gates of this worker, each that of its shard."""
    app.throttle_gates = Gates(gates[0] if len(gates) == 1 else None, find)


def gate_of(request: Any) -> Any:
    """Return the gate of a request; None if no worker runs its app, or the app has no limits."""
    gates: Gates | None = getattr(request.app, "throttle_gates", None)
    return None if gates is None else gates.only or gates.find(request)
