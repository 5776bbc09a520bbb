"""Limiters of single shards, and a scene with several shards, in which tasks wait."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_throttle import Limiter, Throttle
from celery_throttle.limiter.backend import make_backend
from celery_throttle.limits.shards import HOME, Shard
from celery_throttle.operations.shards import ShardFence, ShardIdentity
from celery_throttle.store.client import Store
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix
from tests.servers.server import Server, valkey_command, wait_until
from tests.workers import Worker

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

HOME_KEYS = Keys()


def keys_of(name: str) -> Keys:
    """Return the keys of a shard that does not divide keys."""
    return Keys(shard_prefix(DEFAULT_PREFIX, Shard(name)))


def shard_limiter(
    url: str,
    name: str,
    limits: Mapping[str, str],
    *,
    home_url: str | None = None,
    identity: ShardIdentity | None = None,
) -> Limiter:
    """Return a limiter whose limits the settings of its process give to a shard.

    Args:
        url: the server of the shard.
        name: its name.
        limits: the limits, as the code has them.
        home_url: the server of the home shard; default: the same.
        identity: of the shard; default: one shard for all keys, on the server of the home shard.
    """
    keys = keys_of(name)
    limiter = Limiter(url, limits, prefix=keys.prefix)
    if name != HOME:
        home = Store(home_url or url, timeout=30)
        fence = ShardFence(HOME_KEYS, identity or ShardIdentity(name), home)
        limiter.backend = make_backend(url, limiter.limits, keys, timeout=30, fence=fence)
    return limiter


def home_store_of(limiter: Limiter) -> Store:
    """Return the connections of a :func:`shard_limiter` to the server of the home shard."""
    fence: Any = limiter.plans.fence
    return limiter.store if fence is None else fence.store


def stores_of(limiter: Limiter) -> set[Store]:
    """Return the connections of all shards of a limiter."""
    return {part.store for part in ([limiter] if limiter.parts is None else limiter.parts.all())}


class Scene:
    """Tasks that wait in several shards, two of them on a server of its own, with one worker.

    The limits ``mail`` (home shard), ``erp`` (own server) and ``tenant`` (four shards by key) have
    ``WAITING`` tasks each, besides those that have run.

    Attributes:
        app: an app with the settings of the worker.
        erp: the server of the shard ``erp``; the other server has all others, and is the broker.
    """

    LIMITS: Mapping[str, str] = {
        "mail": "1/h burst 1",
        "erp": "1/h burst 1",
        "tenant": "1/h burst 1",
    }
    WAITING = 4

    def __init__(self, home: Server, erp: Server) -> None:
        self.home, self.erp = home, erp
        shards = {
            "erp": {"limits": ["erp"], "url": erp.url},
            "tenants": {"limits": ["tenant"], "by_key": 4},
        }
        env = {
            "HOME_URL": home.url,
            "SHARDS": json.dumps(shards),
            "LIMITS": json.dumps(self.LIMITS),
        }
        self.app: Any = Celery("sharded", broker=home.url, set_as_current=False)
        Throttle(self.app, self.LIMITS, url=home.url, shards=shards, timeout=2)
        self.worker = Worker("tests.apps.sharded", home.url, env=env)

    @property
    def throttle(self) -> Throttle:
        throttle: Throttle = self.app.throttle
        return throttle

    def __enter__(self) -> Self:
        self.worker.__enter__()
        for number in range(self.WAITING + 1):
            for name in ("mail", "erp"):
                task = f"tests.apps.sharded.{name}"
                self.app.send_task(task, (number,), task_id=f"{name}-{number}")
        for number in range(self.WAITING):  # the first task of each tenant has run
            for n in range(2):
                task_id = f"tenant-{number}-{n}"
                self.app.send_task("tests.apps.sharded.tenant", (number,), task_id=task_id)
        wait_until(self._all_wait, "tasks that wait in all shards")
        return self

    def _all_wait(self) -> bool:
        found = {one.name: one.waiting for one in self.throttle.status().limits}
        return found == dict.fromkeys(self.LIMITS, self.WAITING)

    def __exit__(self, *_: object) -> None:
        self.worker.close()
        for part in self.throttle.app_parts:
            part.store.close()
        self.app.close()

    @contextmanager
    def lost(self) -> Iterator[None]:
        """For the time of a ``with``, the server of the shard ``erp`` answers nothing."""
        self.erp.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.erp.signal(signal.SIGCONT)
            wait_until(lambda: not self.throttle.status().lost_shards, "a server that is back")


@contextmanager
def make_scene(directory: Path) -> Iterator[Scene]:
    """Start the servers and the worker of a scene."""
    servers = []
    for name in ("home", "erp"):
        (directory / name).mkdir()
        servers.append(Server(valkey_command(), directory / name))
    try:
        with Scene(*servers) as scene:
            yield scene
    finally:
        for server in servers:
            server.stop()
