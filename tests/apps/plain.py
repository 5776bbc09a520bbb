"""A Celery app without limits: what throttled tasks are compared with."""

from __future__ import annotations

from pathlib import Path

from celery import Celery

app = Celery("plain", broker="redis://localhost/0")


@app.task
def note(path: str, line: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
