"""What nobody should send is refused as Celery refuses it, and harms neither worker nor line."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from kombu.message import Message

from celery_throttle import KeysFullError, KeyValueError, Limiter, QueueFullError
from celery_throttle.limits.key import encode_key
from celery_throttle.limits.requirement import MAX_LIMITS_PER_TASK
from celery_throttle.store.script import script
from celery_throttle.tasks.messages import packing
from tests.apps import hostile
from tests.protocol import LINE_KINDS
from tests.servers.server import assert_nothing_left_behind, wait_until
from tests.workers import Worker

pytestmark = pytest.mark.workers

SECONDS = 20  # what takes longer never comes; only tests that fail wait so long
EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
PICKLE = "application/x-python-serialize"


def until(true: Callable[[], Any], what: str) -> None:
    wait_until(true, what, SECONDS)


class Damage(str):
    """Lua code that changes the row of a task."""

    __slots__ = ()


class Site:
    """A queue, the worker that serves it, and its limits."""

    def __init__(self, url: str, worker: Worker, queue: str = "celery") -> None:
        self.worker = worker
        self.queue = queue
        self.redis: Any = redis.Redis.from_url(url)  # its stubs mix sync and async replies
        self.limiter = Limiter(url, hostile.LIMITS)
        hostile.app.conf.update(broker_url=url, result_backend=url)

    def raw(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
        content_type: str = "application/json",
        first: bool = False,
    ) -> AsyncResult:
        """Send a message as no client of Celery makes it, to a task with a limit.

        Args:
            body: bytes, or what is sent as JSON.
            headers, properties: to put in.
            content_type: of the body.
            first: as Celery's first protocol has it, without headers.
        """
        task_id = (headers or {}).get("id", str(uuid.uuid4()))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {
            "correlation_id": task_id,
            "delivery_info": {"exchange": "", "routing_key": self.queue},
            "delivery_tag": str(uuid.uuid4()),
            "body_encoding": "base64",
            "priority": 0,
        }
        envelope = {
            "body": base64.b64encode(data).decode(),
            "content-type": content_type,
            "content-encoding": "binary" if content_type == PICKLE else "utf-8",
            "headers": {} if first else about(task_id) | (headers or {}),
            "properties": own | (properties or {}),
        }
        self.redis.lpush(self.queue, json.dumps(envelope))
        return result_of(task_id)

    def send(self, task: Any, *args: Any) -> AsyncResult:
        result: AsyncResult = task.apply_async(args, queue=self.queue)
        return result

    def waiting(self, *results: AsyncResult) -> None:
        """Wait until tasks wait in their lines."""
        name = self.limiter.keys.queue(f"redis/0/{self.queue}").messages
        ids = {result.id.encode("utf-8", "surrogatepass") for result in results}
        until(lambda: ids <= set(self.redis.hkeys(name)), "all tasks wait in their lines")

    def works(self) -> None:
        """The worker is none the worse for it."""
        assert self.send(hostile.plain).get(timeout=SECONDS) == "ran"
        assert self.send(hostile.limited, str(uuid.uuid4())).get(timeout=SECONDS) == "ran"

    def left(self) -> list[str]:
        """What is kept of tasks that wait, or are claimed."""
        kinds = (*LINE_KINDS, "messages", "claims")
        found = (self.redis.scan_iter(f"{{throttle}}:{kind}:*", count=1000) for kind in kinds)
        return [name.decode() for names in found for name in names]

    def forge(self, result: AsyncResult, packed: bytes) -> None:
        """Put another message in the place of one that waits."""
        forge = """
        local entry = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
        entry[5] = ARGV[2]
        redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(entry))
        """
        name = self.limiter.keys.queue(f"redis/0/{self.queue}").messages
        self.redis.eval(forge, 1, name, result.id, packed)

    def damage(self, result: AsyncResult, row: bytes | Damage) -> None:
        """Put another row in the place of that of a task that waits, or change it by Lua code."""
        name = self.limiter.keys.queue(f"redis/0/{self.queue}").messages
        if isinstance(row, bytes):
            self.redis.hset(name, result.id, row)
            return
        change = f"""
        local row = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
        {row}
        redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(row))
        """
        self.redis.eval(change, 1, name, result.id)


def result_of(task_id: str) -> AsyncResult:
    result: AsyncResult = AsyncResult(task_id, app=hostile.app)
    return result


def about(task_id: str) -> dict[str, Any]:
    """The headers of a message."""
    unused = dict.fromkeys(("parent_id", "group", "eta", "expires", "shadow"))
    task = {"lang": "py", "task": hostile.limited.name, "id": task_id, "root_id": task_id}
    return {**unused, **task, "retries": 0, "timelimit": [None, None], "argsrepr": "()"}


@pytest.fixture(scope="module")
def site(server_url: str) -> Iterator[Site]:
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
        with Worker("tests.apps.hostile", server_url) as worker:
            yield Site(server_url, worker)
        assert_nothing_left_behind(client)


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is left of any test, and the worker works."""
    yield
    if "site" in request.fixturenames:
        site: Site = request.getfixturevalue("site")
        until(lambda: not site.left(), "nothing is left")
        site.works()


@pytest.fixture
def key() -> str:
    """A key of limits that no other test has."""
    return f"key-{uuid.uuid4().hex[:8]}"


# What the broker delivers. Of these messages Celery's own worker survives all.


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waits"])
@pytest.mark.parametrize(
    "parts",
    [
        {"properties": {"priority": True}},
        {"properties": {"priority": "high"}},
        {"properties": {"priority": [1]}},
        {"properties": {"priority": 10**30}},
        {"properties": {"priority": float("nan")}},
        {"properties": {"delivery_info": {"exchange": ["x"], "routing_key": {"a": 1}}}},
        {"properties": {"delivery_info": {"exchange": None, "routing_key": "x" * 100_000}}},
        {"properties": {"reply_to": {"a": 1}}},
        {"headers": {"retries": "many"}},
        {"headers": {"retries": [1]}},
        {"headers": {"expires": "9999-12-31T23:59:59"}},
        {"headers": {"deep": {"a": [1, {"b": None}]}, "nan": float("nan")}},
        {"headers": {"throttle": "x", "compression": None}},
    ],
    ids=str,
)
def test_odd_headers_and_properties_do_no_harm(
    site: Site, key: str, parts: dict[str, Any], *, waits: bool
) -> None:
    if waits:
        site.limiter["gate", key].pause(3600)
    result = site.raw([[key], {}, EMBED], **parts)
    if waits:
        site.waiting(result)
        site.limiter["gate", key].reset()
    assert result.get(timeout=SECONDS) == "ran"


@pytest.mark.parametrize(
    "body",
    [
        [None, {"key": 1}, EMBED],
        [5, {"key": 1}, EMBED],
        [{"a": 1}, {"key": 1}, EMBED],
        [[], ["key"], EMBED],
        [[], "key", EMBED],
        [[], 5, EMBED],
    ],
    ids=str,
)
def test_arguments_of_another_shape_fail_their_task(site: Site, body: Any) -> None:
    result = site.raw(body)
    with pytest.raises(KeyValueError, match=r"'tests\.apps\.hostile\.limited' was called with"):
        result.get(timeout=SECONDS)


@pytest.mark.parametrize("task_id", ["a\0b\nc", "{x}:y/z", "'; --", "x" * 100_000, "ünï 🐘"])
def test_a_task_id_of_any_text(site: Site, key: str, task_id: str) -> None:
    task_id += key
    site.limiter["gate", key].pause(3600)
    result = site.raw([[key], {}, EMBED], headers={"id": task_id})
    site.waiting(result)
    site.limiter["gate", key].reset()
    assert result.get(timeout=SECONDS) == "ran"


# What waits in a line. Another worker, with other rules, may have put it there.


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"echo >> {self._path}",)


MISSING = ...
INVALID, UNREADABLE, UNKNOWN = (
    "Received invalid task message",
    "Can't decode message body",
    "Received and deleted unknown message",
)


@pytest.mark.parametrize(
    "forgery",
    [
        (None, {"content_type": PICKLE, "content_encoding": "binary"}, INVALID),
        (None, {"content_type": "pickle"}, INVALID),
        (None, {"content_type": "application/json"}, UNREADABLE),
        (None, {"content_type": "application/data"}, UNREADABLE),
        (None, {"content_type": None, "content_encoding": None}, UNREADABLE),
        (b"[[], {}, {}]", {"content_type": "application/x-evil"}, INVALID),
        (b"[[], {}, {}]", {"content_type": 5}, INVALID),
        (b"[[], {}", {}, UNREADABLE),
        (b"\xff\xfe", {}, UNREADABLE),
        (zlib.compress(b"[[], {}, {}]"), {}, UNREADABLE),
        (zlib.compress(b"[[], {}, {}]"), {"headers": {"compression": "zlib"}}, UNREADABLE),
        (b"null", {}, INVALID),
        (b"[1]", {}, INVALID),
        (b'"text"', {}, INVALID),
        (b"", {}, INVALID),
        (b"[[], {}, {}]", {"headers": {"eta": "soon"}}, INVALID),
        (b"[[], {}, {}]", {"headers": {"id": MISSING}}, INVALID),
        (b"[[], {}, {}]", {"headers": {"id": {}}}, INVALID),
        (b"[[], {}, {}]", {"headers": {"task": MISSING}}, UNKNOWN),
        (b"{}", {"headers": {"task": MISSING}}, UNKNOWN),
        (b"[[], {", {"headers": {"task": MISSING}}, UNREADABLE),
    ],
    ids=str,
)
def test_a_forged_message_is_refused_and_the_line_goes_on(
    site: Site, key: str, tmp_path: Path, forgery: tuple[Any, dict[str, Any], str]
) -> None:
    body, parts, said = forgery
    site.limiter["gate", key].pause(3600)
    forged, following = (site.send(hostile.limited, key) for _ in range(2))
    site.waiting(forged, following)
    told = {"content_type": "application/json", "content_encoding": "utf-8", **parts}
    put = told.pop("headers", {})
    data: Any = pickle.dumps([[Bomb(tmp_path / "here")], {}, EMBED]) if body is None else body
    message = Message(data, **told)
    whole = about(forged.id) | put
    message.headers = {name: value for name, value in whole.items() if value is not MISSING}
    site.forge(forged, packing.pack(message))
    before = len(site.worker.log())
    site.limiter["gate", key].reset()
    assert following.get(timeout=SECONDS) == "ran"
    until(lambda: said in site.worker.log()[before:], f"the worker says: {said}")
    assert "Error in timer" not in site.worker.log()[before:]
    assert not (tmp_path / "here").exists()
    assert not forged.ready()


@pytest.mark.parametrize("timelimit", ["soon", 5, [1, 2, 3]], ids=str)
def test_a_forged_message_that_no_pool_takes_fails_its_task(
    site: Site, key: str, timelimit: Any
) -> None:
    site.limiter["gate", key].pause(3600)
    forged, following = (site.send(hostile.limited, key) for _ in range(2))
    site.waiting(forged, following)
    body: Any = json.dumps([[key], {}, EMBED]).encode()
    message = Message(body, content_type="application/json", content_encoding="utf-8")
    message.headers = about(forged.id) | {"timelimit": timelimit}
    site.forge(forged, packing.pack(message))
    site.limiter["gate", key].reset()
    with pytest.raises((TypeError, ValueError), match="unpack"):
        forged.get(timeout=SECONDS)
    assert following.get(timeout=SECONDS) == "ran"
    site.works()
    until(lambda: not site.left(), "nothing is left")


def quarantined(site: Site) -> dict[str, str]:
    """The tasks in quarantine, with their labels."""
    source, key = script("scan").source, site.limiter.keys.quarantine
    _, *rows = site.redis.eval(source, 1, key, "quarantine", "0", "", "")
    return {task_id.decode(): label.decode() for task_id, label, _ in rows}


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"\xc1",  # no MessagePack
        b"\x01",  # a number
        b"\x80",  # an empty map
        b"\x91\x01",  # an array of one number
        Damage("row[2] = {}"),
        Damage("row[2] = {'one'}"),
        Damage("row[5] = 5"),
        Damage("row[4] = 'now'"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_read_stops_no_other(site: Site, key: str, row: Any) -> None:
    site.limiter["gate", key].pause(3600)
    before, damaged, following = (site.send(hostile.limited, key) for _ in range(3))
    site.waiting(before, damaged, following)
    site.damage(damaged, row)
    logged = len(site.worker.log())
    site.limiter["gate", key].reset()
    assert [one.get(timeout=SECONDS) for one in (before, following)] == ["ran"] * 2
    until(lambda: quarantined(site) == {damaged.id: "damaged "}, "the task is in quarantine")
    said = f"ERROR/MainProcess] Task {damaged.id} cannot be read"
    until(lambda: said in site.worker.log()[logged:], "the worker logs it")
    removal = hostile.throttle["gate", key].drop()
    assert (removal.removed, removal.failed) == (1, 0)
    with pytest.raises(TaskRevokedError):
        damaged.get(timeout=SECONDS)


def test_a_descriptor_that_cannot_be_read_stops_no_task(site: Site, key: str) -> None:
    """Its tasks are decided at the gate."""
    site.limiter["gate", key].pause(3600)
    sent = [site.send(hostile.limited, key) for _ in range(3)]
    site.waiting(*sent)
    name = site.limiter.keys.queue("redis/0/celery").lines
    (line,) = site.redis.hkeys(name)
    site.redis.hset(name, line, b"\x01\xc1")
    site.limiter["gate", key].reset()
    assert [one.get(timeout=SECONDS) for one in sent] == ["ran"] * 3


def test_a_task_with_many_limits_stops_no_other(site: Site, key: str) -> None:
    names = [f"wide{number}" for number in range(MAX_LIMITS_PER_TASK)]
    for name in (names[0], names[-1]):
        site.limiter[name].pause(3600)
    wide = site.send(hostile.wide)
    site.waiting(wide)
    site.limiter[names[0]].reset()  # it waits at the last of its limits now
    site.limiter["gate", key].pause(3600)
    other = site.send(hostile.limited, key)
    site.waiting(other)
    site.limiter["gate", key].reset()
    assert other.get(timeout=SECONDS) == "ran"
    site.limiter[names[-1]].reset()
    assert wide.get(timeout=SECONDS) == "ran"


def test_a_damaged_message_is_set_aside_for_good(site: Site, key: str) -> None:
    site.limiter["gate", key].pause(3600)
    damaged, following = (site.send(hostile.limited, key) for _ in range(2))
    site.waiting(damaged, following)
    site.forge(damaged, b"1\xff\xff\0\0{}")
    site.limiter["gate", key].reset()
    assert following.get(timeout=SECONDS) == "ran"
    assert quarantined(site) == {damaged.id: "damaged "}
    site.redis.delete(site.limiter.keys.quarantine)


@pytest.mark.parametrize("kind", ["line", "lines", "due", "waiting", "backlog"])
def test_a_server_that_evicts_a_key_of_lines_loses_no_task(site: Site, key: str, kind: str) -> None:
    site.limiter["gate", key].pause(3600)
    sent = [site.send(hostile.limited, key) for _ in range(5)]
    site.waiting(*sent)
    names = list(site.redis.scan_iter(f"{{throttle}}:{kind}:*", count=1000))
    assert site.redis.delete(*names) == len(names) > 0
    site.limiter["gate", key].reset()
    site.send(hostile.limited, key)  # of those that nobody knows of, the next brings all along
    assert [one.get(timeout=SECONDS) for one in sent] == ["ran"] * 5


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", [1, 2])
def test_a_pickled_message_is_refused_by_a_worker_that_takes_none(
    site: Site, server_url: str, tmp_path: Path, protocol: int
) -> None:
    """One worker takes what is pickled, and parks it; another, which does not, comes to it."""
    here, task_id = tmp_path / "here", str(uuid.uuid4())
    queue = f"queue-{task_id}"
    site.limiter["gate", "k"].pause(3600)
    trusting = {"HOSTILE_ACCEPT": "json,pickle", "C_FORCE_ROOT": "1"}
    with Worker("tests.apps.hostile", server_url, queues=[queue], env=trusting) as worker:
        other = Site(server_url, worker, queue)
        body: Any = [["k", Bomb(here)], {}, EMBED]
        if protocol == 1:
            args, kwargs, _ = body
            body = {**about(task_id), "args": args, "kwargs": kwargs}
        data, first = pickle.dumps(body), protocol == 1
        other.raw(data, content_type=PICKLE, headers={"id": task_id}, first=first)
        other.waiting(result_of(task_id))
    here.unlink()
    with Worker("tests.apps.hostile", server_url, queues=[queue]) as worker:
        other = Site(server_url, worker, queue)
        following = other.send(hostile.limited, "k")
        other.waiting(following)
        site.limiter["gate", "k"].reset()
        assert following.get(timeout=SECONDS) == "ran"
        said = UNREADABLE if protocol == 1 else INVALID
        until(lambda: said in worker.log(), f"the worker says: {said}")
        assert "untrusted content of type pickle" in worker.log()
        assert not here.exists()
        until(lambda: not other.left(), "nothing is left")


# Keys.


def test_names_in_redis_stay_short_and_plain(site: Site) -> None:
    values = [
        *("a:b", "a/b", "{}", "{throttle}", "line\nbreak", "NUL\0", "ünï 🐘", "\ud800", "*?[", ""),
        *("x" * 1_000_000, "\0" * 1_000_000, 1.5, 10**4000, True, None, "a" * 80, "a" * 81),
    ]
    results = []
    for value in values:
        site.limiter["gate", value].pause(3600)
        results.append(site.raw([[value], {}, EMBED]))
    site.waiting(*results)
    names: list[bytes] = list(site.redis.scan_iter("{throttle}*", count=1000))
    assert all(re.fullmatch(rb"\{throttle\}:[\w.@%!=:#/+-]{1,150}", name) for name in names), names
    lines = site.redis.hlen("{throttle}:lines:redis/0/celery")
    assert lines == len({encode_key(value) for value in values}) == len(values)
    for value in values:
        site.limiter["gate", value].reset()
    assert [result.get(timeout=SECONDS) for result in results] == ["ran"] * len(values)


def test_values_that_look_alike_are_keys_of_their_own(site: Site) -> None:
    alike: list[Any] = [1, True, 1.0, "True", "1.0", None, "None", "", "!none", "null", 0, False]
    held = [site.limiter["gate", value].pause(3600) for value in alike[::2]]
    assert len(held) == 6
    results = [site.raw([[value], {}, EMBED]) for value in alike]
    site.waiting(*results[::2])
    assert [result.get(timeout=SECONDS) for result in results[1::2]] == ["ran"] * 6
    same = site.raw([["1"], {}, EMBED])  # the one exception, see limits/key.py
    site.waiting(same)
    for value in alike[::2]:
        site.limiter["gate", value].reset()
    assert [result.get(timeout=SECONDS) for result in (*results[::2], same)] == ["ran"] * 7


# Bombs.


def outcomes(results: list[AsyncResult]) -> list[Any]:
    """What became of tasks, and None of those that wait."""
    return [result.result if result.ready() else None for result in results]


def test_a_bomb_of_keys(site: Site) -> None:
    results = [site.send(hostile.few, f"k{number}") for number in range(300)]
    until(lambda: None not in outcomes(results), "all tasks are done")
    found = outcomes(results)
    ran = [f"k{number}" for number, outcome in enumerate(found) if outcome == "ran"]
    assert len(ran) == 3
    errors = [one for one in found if one != "ran"]
    assert {type(error) for error in errors} == {KeysFullError}
    assert {(error.limit, error.max_keys) for error in errors} == {("few", 3)}
    assert all(3500 < error.retry_after <= 3600 for error in errors)
    kept = {name.decode() for name in site.redis.scan_iter("{throttle}*few*", count=1000)}
    # A worker makes the records of the totals every ten seconds.
    records = {f"{{throttle}}:totals:few/{kind}" for kind in ("recent", "week")}
    states = {f"{{throttle}}:state:few:{key}" for key in ran}
    assert kept - records == {"{throttle}:key-cap:few", "{throttle}:totals:few", *states}
    again = site.send(hostile.few, ran[0])  # its key is in use, so it may wait
    site.waiting(again)
    dropped = site.send(hostile.few_or_dropped, "another")
    with pytest.raises(TaskRevokedError):
        dropped.get(timeout=SECONDS)
    site.limiter["few", ran[0]].reset()
    assert again.get(timeout=SECONDS) == "ran"
    for key in ran:
        site.limiter["few", key].reset()


def test_a_bomb_of_tasks(site: Site) -> None:
    results = [site.send(hostile.short) for _ in range(300)]
    until(lambda: outcomes(results).count(None) == 3, "all tasks but three are done")
    found = outcomes(results)
    assert found.count("ran") == 1
    errors = [one for one in found if isinstance(one, QueueFullError)]
    assert len(errors) == 296
    assert {(error.limit, error.max_waiting) for error in errors} == {("short", 3)}
    assert "max-waiting 3" in str(errors[0])
    assert site.redis.hlen("{throttle}:messages:redis/0/celery") == 3
    dropped = site.send(hostile.short_or_dropped)
    with pytest.raises(TaskRevokedError):
        dropped.get(timeout=SECONDS)
    site.limiter["short"].define("100/s max-waiting 3")
    until(lambda: None not in outcomes(results), "those that waited are done")
    assert outcomes(results).count("ran") == 4
    site.limiter["short"].undefine()
    site.limiter["short"].reset()
