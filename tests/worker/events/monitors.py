"""Programs that read the events of workers, each a process of its own, and what they show."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.programs import ROOT
from tests.servers.server import free_port
from tests.tether import Tethered

#: An environment of their own, as they need other versions: make .venv/monitors/.stamp
PYTHON = ROOT / ".venv" / "monitors" / "bin" / "python"

READY_SECONDS = 30

_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="(.*?)"')


class Monitor:
    """A program with metrics in Prometheus' format; a context that ends it."""

    def __init__(self, *command: str, log: Path, env: dict[str, str] | None = None) -> None:
        self.port = free_port()
        arguments = [text.format(port=self.port) for text in command]
        self._running = Tethered([PYTHON, *arguments], log, env)
        self._running.wait_until(self._answers, READY_SECONDS)

    def _answers(self) -> bool:
        try:
            return bool(self.get("/metrics"))
        except OSError:
            return False

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def samples(self, metric: str, **labels: str) -> dict[str, float]:
        """Return the values of a metric by worker, those with certain other labels."""
        return self.parse(self.get("/metrics"), metric, **labels)

    @staticmethod
    def parse(metrics: str, metric: str, **labels: str) -> dict[str, float]:
        """Return the values of a metric in a text with all metrics, as :meth:`samples` does."""
        values: dict[str, float] = {}
        for sample in _SAMPLE.finditer(metrics):
            found = dict(_LABEL.findall(sample["labels"] or ""))
            worker = found.get("worker") or found.get("hostname", "")
            if sample["name"] == metric and labels.items() <= found.items():
                values[worker] = values.get(worker, 0) + float(sample["value"])
        return values

    def total(self, metric: str, **labels: str) -> float:
        """Return the sum of a metric over all workers."""
        return sum(self.samples(metric, **labels).values())

    def log(self) -> str:
        return self._running.log()

    def end(self) -> None:
        self._running.end()


class Flower(Monitor):
    """Flower, with its API."""

    def __init__(self, broker_url: str, folder: Path) -> None:
        super().__init__(
            *("-m", "celery", "--broker", broker_url),
            *("flower", "--address=127.0.0.1", "--port={port}"),
            log=folder / "flower.log",
            env={"FLOWER_UNAUTHENTICATED_API": "true"},
        )

    def task(self, task_id: str) -> dict[str, Any]:
        """Return what it knows about a task; nothing if it does not know the task."""
        try:
            found: dict[str, Any] = json.loads(self.get(f"/api/task/info/{task_id}"))
        except urllib.error.HTTPError:
            return {}
        return found

    def page(self, task_id: str) -> str:
        return self.get(f"/task/{task_id}")

    def prefetched(self, task: str) -> dict[str, float]:
        """Return the numbers of prefetched tasks of a name that are not 0, by worker."""
        found = self.samples("flower_worker_prefetched_tasks", task=task)
        return {worker: value for worker, value in found.items() if value}


class Exporter(Monitor):
    """celery-exporter, which the package index calls prometheus-exporter-celery."""

    def __init__(self, broker_url: str, folder: Path) -> None:
        super().__init__(
            *("-c", "from src.cli import cli; cli()", "--broker-url", broker_url),
            *("--host", "127.0.0.1", "--port", "{port}"),
            log=folder / "exporter.log",
        )

    def counts(self, task: str) -> dict[str, float]:
        """Return how many events it has counted for the tasks of a name, by their kinds."""
        metrics = self.get("/metrics")  # once, as that takes it seconds
        return {
            event: sum(self.parse(metrics, f"celery_task_{event}_total", name=task).values())
            for event in ("received", "started", "revoked")
        }


def is_installed(package: str) -> bool:
    """Return whether the environment of the monitors has a package."""
    return any(PYTHON.parent.parent.glob(f"lib/python*/site-packages/{package}-*.dist-info"))
