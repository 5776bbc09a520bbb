"""The log of changes, and the origins of pauses."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_throttle.errors import LimitValueError
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.duration import ENDLESS_US
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.author import Author
from celery_throttle.testing import ManualClock
from tests.ends import End, MakeEnd
from tests.protocol import SECOND, START

LIMITS = {"api": "10/s", "mail": "1/s"}
ANN: dict[str, Any] = {"by": "ann", "reason": "a sale"}

Change = tuple[str, str, str, str]


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def plain(redis_url: str, clock: ManualClock) -> Iterator[Limiter]:
    limiter = Limiter(redis_url, LIMITS, clock=clock)
    limiter.register()
    yield limiter
    limiter.store.close()


@pytest.fixture
def limiter(plain: Limiter, end_of: MakeEnd) -> End:
    """Blocking and asyncio."""
    return end_of(plain)


def changes(client: Any) -> list[Change]:
    """Return action, limit, old and new value of all changes; the author is ann."""
    found = [entry for _, entry in client.xrange("{throttle}:changes")]
    for entry in found:
        assert json.loads(entry["about"]) == {"by": "ann", "why": "a sale"}
    return [(one["action"], one["limit"], one["old"], one["new"]) for one in found]


def test_definitions(limiter: End, client: Any, clock: ManualClock) -> None:
    limiter["api"].define("20/s", **ANN)
    limiter["api"].define(["30/s", "9/m"], lasts=60, **ANN)
    limiter["api", "gold"].define("5/s", **ANN)
    limiter["new"].define("1/s max-keys 3", **ANN)
    clock.advance(1)
    limiter["api", "gold"].undefine(**ANN)
    limiter["api"].undefine(**ANN)
    limiter["new"].undefine(**ANN)
    assert changes(client) == [
        ("define", "api", "10/s", "20/s"),
        ("define", "api", "20/s", "30/s; 9/m"),
        ("define", "api:gold", "30/s; 9/m", "5/s"),
        ("define", "new", "", "1/s max-keys 3"),
        ("undefine", "api:gold", "5/s", "30/s; 9/m"),
        ("undefine", "api", "30/s; 9/m", "10/s"),
        ("undefine", "new", "1/s max-keys 3", ""),
    ]
    times = [int(entry["at"]) for _, entry in client.xrange("{throttle}:changes")]
    assert times == [START] * 4 + [START + SECOND] * 3


def test_nothing_is_recorded_that_changes_nothing(
    limiter: End, plain: Limiter, client: Any
) -> None:
    plain.register()
    limiter["api"].undefine()
    limiter["api"].resume()
    assert changes(client) == []


def test_an_end_is_recorded_with_the_next_definition(
    plain: Limiter, client: Any, clock: ManualClock
) -> None:
    plain["api"].define("20/s", lasts=60, **ANN)
    clock.advance(61)
    plain.register()
    assert changes(client) == [("define", "api", "10/s", "20/s"), ("end", "api", "20/s", "10/s")]


@pytest.mark.usefixtures("plain")
def test_new_limits_of_the_code(redis_url: str, client: Any) -> None:
    newer = Limiter(redis_url, {"api": "15/s", "mail": "60/m", "new": "1/s"})
    newer.register()
    newer.store.close()
    ((_, entry),) = client.xrange("{throttle}:changes")
    about = json.loads(entry.pop("about"))
    assert entry.pop("at").isdigit()
    assert entry == {"action": "code", "limit": "api", "old": "10/s", "new": "15/s"}
    assert about == {"by": f"{getpass.getuser()}@{socket.gethostname()}", "why": None}


def test_weights(limiter: End, client: Any) -> None:
    limiter["api"].define(weight=3, **ANN)
    limiter["api"].define(weight=3, **ANN)
    limiter["api"].define(weight=3, lasts=60, **ANN)
    limiter["api", "gold"].define(weight=7, **ANN)
    limiter["api"].undefine(**ANN)
    limiter["api", "gold"].undefine(**ANN)
    assert changes(client) == [
        ("weight", "api", "", "3"),
        ("weight", "api", "3", "3"),
        ("weight", "api:gold", "", "7"),
        ("weight", "api", "3", ""),
        ("weight", "api:gold", "7", ""),
    ]


def test_when_they_end(limiter: End, plain: Limiter, client: Any, clock: ManualClock) -> None:
    limiter["api"].define("20/s", weight=3, lasts=60, **ANN)
    clock.advance(1)
    limiter["api"].define("20/s", weight=3, **ANN)
    ends = [entry.get("until") for _, entry in client.xrange("{throttle}:changes")]
    assert ends == [str(START + 60 * SECOND)] * 2 + [None] * 2
    found = [
        (change.action, change.until and change.until.timestamp()) for change in plain.changes()
    ]
    assert found == [("weight", None), ("define", None)] + [
        (action, START / SECOND + 60) for action in ("weight", "define")
    ]


def test_pauses_and_resets(limiter: End, client: Any, clock: ManualClock) -> None:
    limiter["api"].pause(60, **ANN)
    limiter["api", "gold"].pause(None, **ANN)
    clock.advance(10)
    assert limiter["api"].pause(20, **ANN) == 50  # a pause is never shortened
    limiter["api"].pause(55, **ANN)
    limiter["api"].resume(**ANN)
    limiter["api", "gold"].reset(**ANN)
    endless = str(ENDLESS_US)
    assert changes(client) == [
        ("pause", "api", "0", str(60 * SECOND)),
        ("pause", "api:gold", "0", endless),
        ("pause", "api", str(50 * SECOND), str(55 * SECOND)),
        ("resume", "api", str(55 * SECOND), ""),
        ("reset", "api:gold", "", ""),
    ]


def test_the_last_thousand_are_kept(plain: Limiter, client: Any) -> None:
    for number in range(1_010):
        plain["api"].pause(number + 1, **ANN)
    found = changes(client)
    assert len(found) == 1_000
    assert found[-1][3] == str(1_010 * SECOND)
    assert found[0][3] == str(11 * SECOND)
    assert client.pttl("{throttle}:changes") > 364 * 86_400_000


# Origins of pauses.


def origin(client: Any, ref: LimitRef) -> tuple[int, Author | None] | None:
    """Return when the pause of a limit was made, and by whom."""
    found = client.get("{throttle}:paused-by:" + ":".join(filter(None, ref)))
    if found is None:
        return None
    at, about = found.split(" ", 1)
    return int(at), Author.unpack(about)


@pytest.mark.parametrize("key", [None, "gold"])
def test_a_pause_has_the_author_of_that_which_ends_last(
    limiter: End, client: Any, clock: ManualClock, key: str | None
) -> None:
    ref = LimitRef("api", key)
    limiter[ref].pause(60, by="ann", reason="a sale")
    clock.advance(10)
    limiter[ref].pause(20, by="bob")
    assert origin(client, ref) == (START, Author("ann", "a sale"))
    limiter[ref].pause(51, by="bob")
    assert origin(client, ref) == (START + 10 * SECOND, Author("bob"))
    if key:
        assert client.zrange("{throttle}:paused:api", 0, -1) == [key]
    limiter[ref].resume()
    assert origin(client, ref) is None
    assert not client.exists("{throttle}:paused:api")


def test_a_reset_forgets_the_origin(limiter: End, client: Any) -> None:
    limiter["api", "gold"].pause(60)
    limiter["api", "gold"].reset()
    assert origin(client, LimitRef("api", "gold")) is None
    assert not client.exists("{throttle}:paused:api")


def test_an_api_stops_its_limit(plain: Limiter, client: Any) -> None:
    plain.learn(["api", plain["mail", "k"]], Feedback(refused=True, stop=30))
    author = Author("API", "it refused a request, and asked to stop for 30 s")
    for ref in (LimitRef("api", None), LimitRef("mail", "k")):
        assert origin(client, ref) == (START, author)
    assert client.zrange("{throttle}:paused:mail", 0, -1) == ["k"]
    assert not client.exists("{throttle}:paused:api")
    assert changes(client) == []  # people and files make changes


def test_an_origin_lasts_as_long_as_its_pause(plain: Limiter, client: Any) -> None:
    plain["api", "gold"].pause(60)
    plain["api", "lead"].pause(3600)
    pauses = [client.pttl(f"{{throttle}}:pause:api:{key}") for key in ("gold", "lead")]
    origins = [client.pttl(f"{{throttle}}:paused-by:api:{key}") for key in ("gold", "lead")]
    assert origins == pytest.approx(pauses, abs=5_000)
    assert client.pttl("{throttle}:paused:api") == pytest.approx(pauses[1], abs=5_000)


# All limits at once.


def test_all_limits_are_paused_and_resumed(limiter: End, plain: Limiter, client: Any) -> None:
    plain["new"].define("5/s", by="ann", reason="a sale")
    plain["api", "gold"].pause(None, **ANN)
    assert limiter.pause_all(60, **ANN) == ["api", "mail", "new"]
    for name in ("api", "mail", "new"):
        refused = plain[name].try_acquire()
        assert refused.paused == 60
        assert origin(client, LimitRef(name, None)) == (START, Author("ann", "a sale"))
    plain["mail"].resume(**ANN)
    assert limiter.resume_all(**ANN) == ["api", "new"]
    for name in ("api", "mail", "new"):
        assert plain[name].try_acquire()
    assert not plain["api", "gold"].try_acquire()
    assert limiter.resume_all() == []
    actions = [change[:2] for change in changes(client)]
    assert actions[2:] == [
        *(("pause", name) for name in ("api", "mail", "new")),
        *(("resume", name) for name in ("mail", "api", "new")),
    ]


def test_all_limits_of_the_code_are_paused_before_the_server_knows_them(
    redis_url: str, clock: ManualClock, end_of: MakeEnd
) -> None:
    plain = Limiter(redis_url, LIMITS, clock=clock)
    limiter = end_of(plain)
    assert limiter.pause_all(None) == ["api", "mail"]
    assert not limiter["api"].try_acquire()
    assert limiter.resume_all() == ["api", "mail"]


def test_all_limits_in_memory(clock: ManualClock) -> None:
    limiter = Limiter("memory://", LIMITS, clock=clock)
    limiter["new"].define("5/s")
    assert limiter.pause_all(60) == ["api", "mail", "new"]
    assert not limiter["new"].try_acquire()
    assert limiter.resume_all() == ["api", "mail", "new"]
    assert limiter["new"].try_acquire()


# Authors.


def test_the_default_author_is_the_user_at_its_host(plain: Limiter, client: Any) -> None:
    plain["api"].pause(60)
    me = Author(f"{getpass.getuser()}@{socket.gethostname()}")
    assert origin(client, LimitRef("api", None)) == (START, me)


def test_any_text_is_kept(plain: Limiter, client: Any) -> None:
    reason = 'it\'s "ä" \N{SNOWMAN} \0 \n; 10/s'
    plain["api"].define("20/s", lasts=60, reason=reason, by="ann")
    plain["api"].define("30/s", reason=reason, by="\0")
    found = [json.loads(entry["about"]) for _, entry in client.xrange("{throttle}:changes")]
    assert found == [{"by": "ann", "why": reason}, {"by": "\0", "why": reason}]
    assert plain["api"].try_acquire()


@pytest.mark.parametrize("text", [7, "x" * 501, b"ann"])
@pytest.mark.parametrize("what", ["by", "reason"])
def test_an_author_and_a_reason_are_short_texts(plain: Limiter, what: str, text: Any) -> None:
    calls = (
        lambda: plain["api"].define("1/s", **{what: text}),
        lambda: plain.pause_all(1, **{what: text}),
        lambda: plain["api"].pause(1, **{what: text}),
        lambda: plain["api"].resume(**{what: text}),
        lambda: plain["api"].reset(**{what: text}),
    )
    for call in calls:
        with pytest.raises(LimitValueError, match=rf"^{what} is .*; allowed: text of up to 500"):
            call()
