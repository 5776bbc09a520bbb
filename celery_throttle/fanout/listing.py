"""The fan-outs of a server, with or without waiting tasks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from celery_throttle.fanout.progress import Progress
from celery_throttle.limits.duration import pause_to_seconds
from celery_throttle.store.script import Call, script
from celery_throttle.tasks.app_limits import AppLimits

#: Records that one call reads.
_PAGE_SIZE = 50


def list_fan_outs(throttle: AppLimits) -> list[Progress]:
    """Return the progress of each fan-out that has a record, the most waiting tasks first."""
    found = {progress.name: progress for progress in _read_all(throttle)}
    return sorted(found.values(), key=lambda progress: (-progress.waiting, progress.name))


def _read_all(throttle: AppLimits) -> Iterator[Progress]:
    keys, first, count = throttle.keys, 0, 1
    names = [keys.fan_outs, *keys.fan_out_heads]
    while first < count:
        call = Call(script("list_fan_outs"), names, ["", first, _PAGE_SIZE])
        now, count, *rows = throttle.store.run(call)
        for encoded, paused, fields in rows:
            texts = [text.decode() for text in fields]
            record = dict(zip(texts[::2], texts[1::2], strict=True))
            name = record.get("name") or unquote(encoded.decode())
            yield Progress.read(name, int(now), pause_to_seconds(int(paused)), record)
        first += _PAGE_SIZE
