"""One value of what was read of several shards."""

from __future__ import annotations

from datetime import datetime, timezone

from celery_throttle.observe.merged import merge_pages
from celery_throttle.observe.values import Status, Stranded

NOW = datetime(2026, 11, 27, tzinfo=timezone.utc)


def test_tasks_that_are_stranded_in_several_shards_are_added() -> None:
    pages = [
        Status(NOW, (), None, 1, (Stranded("q", 5, "queue", "q"), Stranded("", tasks, "task", "")))
        for tasks in (2, 4)
    ]
    assert merge_pages(pages).stranded == (
        Stranded("q", 10, "queue", "q"),
        Stranded("", 6, "task", ""),
    )
