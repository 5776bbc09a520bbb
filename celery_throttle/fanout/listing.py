"""The fan-outs of a server, with or without waiting tasks."""

from __future__ import annotations

from collections.abc import Iterator

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
    first, total = 0, 1
    while first < total:
        names = [throttle.keys.fan_outs]
        call = Call(script("list_fan_outs"), names, ["", first, _PAGE_SIZE])
        now, total, *rows = throttle.store.run(call)
        for paused, fields in rows:
            texts = [text.decode() for text in fields]
            record = dict(zip(texts[::2], texts[1::2], strict=True))
            paused_seconds = pause_to_seconds(int(paused))
            yield Progress.read(record["name"], int(now), paused_seconds, record)
        first += _PAGE_SIZE
