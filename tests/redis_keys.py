"""The catalogue of keys: as documentation, and as a check of the keys on a server.

``python -m tests.redis_keys`` writes ``docs/reference/redis-keys.md``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import redis

from celery_throttle.store.keys import DEFAULT_PREFIX
from tests.key_catalogue import KEY_KINDS, SECTIONS, Expiry, KeyKind

DOCS = Path(__file__).parents[1] / "docs" / "reference" / "redis-keys.md"

CATALOGUE = "tests/key_catalogue.py"

#: What a server is asked of so many keys of each kind; names are all checked.
CHECKED_OF_EACH_KIND = 200

_HEAD = """\
# Keys in Redis

This page lists every key and every channel that the package uses, with the default prefix `{throttle}`. [`throttle_prefix`](settings.md#throttle_prefix) sets another prefix. The names and contents are internal: they may change in any version. Use the page to size a server, to write access rules, or to find out what a key is.

`make keys` generates the page from `celery_throttle/store/keys.py`, which builds the names, and `tests/key_catalogue.py`, which describes them. The tests check that every key they find on a server is on this page, with its type and its expiry.

* `<limit>` is the name of a limit, `<key>` an [encoded key](tasks.md#which-keys-are-equal), `<queue>` a queue with its broker, `<worker>` one worker process. `[:<key>]` is present only for a limit with keys.
* Times are microseconds since 1970, by the server's clock.
* "Packed" means MessagePack or a binary structure. The files in `celery_throttle/store/scripts/` describe each format.
* The column *expires* says when Redis deletes the key. A key that never expires holds tasks or definitions.
"""  # noqa: E501

_TABLE = """\
| key | type | content | expires |
|---|---|---|---|
"""

_ENCODED = r"[A-Za-z0-9_.\-@%!=:#]+"
_PLACEHOLDERS = {
    "<limit>": r"[A-Za-z_][A-Za-z0-9_.\-]*",
    "[:<key>]": rf"(?::{_ENCODED})?",
    "<fan-out>": r"[^:]+",
    "<queue>": r".+",
    "<worker>": r".+",
    "<digest>": r"[0-9a-f]{32}",
    "<n>": r"[0-9]+",
    "<work>": r".+",
}
_PLACEHOLDER = re.compile("(" + "|".join(map(re.escape, _PLACEHOLDERS)) + ")")


def key_table() -> str:
    """The whole of ``docs/reference/redis-keys.md``."""
    return _HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    for title, kinds in SECTIONS.items():
        yield f"\n## {title}\n\n{_TABLE}"
        for kind in kinds:
            cells = f"`{kind.pattern}`", kind.type, kind.content, _expiry(kind)
            yield f"| {' | '.join(cells)} |\n"


def _expiry(kind: KeyKind) -> str:
    if kind.expiry is Expiry.ALWAYS:
        return kind.lifetime
    return "; ".join(filter(None, (kind.expiry.value, kind.lifetime)))


@cache
def _patterns(prefix: str) -> list[tuple[re.Pattern[str], KeyKind]]:
    found = []
    for kind in KEY_KINDS:
        parts = _PLACEHOLDER.split(kind.pattern.removeprefix(DEFAULT_PREFIX))
        text = "".join(_PLACEHOLDERS.get(part, re.escape(part)) for part in parts)
        found.append((re.compile(re.escape(prefix) + text, re.DOTALL), kind))
    return found


@cache
def kind_of(name: str, prefix: str = DEFAULT_PREFIX) -> KeyKind | None:
    """The kind of a key or channel; None if it is not in the catalogue."""
    return next((kind for regex, kind in _patterns(prefix) if regex.fullmatch(name)), None)


def assert_catalogued(
    client: redis.Redis | redis.RedisCluster, prefix: str = DEFAULT_PREFIX
) -> dict[str, KeyKind]:
    """Fails unless every key with the prefix is in the catalogue, with its type and expiry.

    Returns the keys and their kinds.
    """
    found = sorted(key.decode() for key in client.scan_iter(count=10_000))
    kinds = {key: kind_of(key, prefix) for key in found if key.startswith(prefix)}
    known = {key: kind for key, kind in kinds.items() if kind}
    unknown = kinds.keys() - known.keys()
    assert not unknown, f"not in {CATALOGUE}: {', '.join(sorted(unknown))}"
    some = list(_some_of_each(known.items()))
    with client.pipeline(transaction=False) as pipe:
        for key, _ in some:
            pipe.type(key)
            pipe.pttl(key)
        replies = pipe.execute()
    endless = []
    for (key, kind), type_, lifetime in zip(some, replies[::2], replies[1::2], strict=True):
        actual = type_.decode()
        if actual != "none":  # it has expired since
            assert actual == kind.type, f"{key} is a {actual}, in {CATALOGUE} a {kind.type}"
        if kind.expiry is Expiry.ALWAYS and lifetime == -1:
            endless.append(key)
    assert not endless, f"without expiry, which {CATALOGUE} says they have: {', '.join(endless)}"
    return known


def _some_of_each(keys: Iterable[tuple[str, KeyKind]]) -> Iterator[tuple[str, KeyKind]]:
    seen: Counter[KeyKind] = Counter()
    for key, kind in keys:
        seen[kind] += 1
        if seen[kind] <= CHECKED_OF_EACH_KIND:
            yield key, kind


if __name__ == "__main__":
    DOCS.write_text(key_table(), encoding="utf-8")
