"""A page of metrics as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_throttle.observe.metrics.prometheus import make_registry

PREFIX = "celery_throttle_"


class Page:
    """The samples of a page, by name and labels; ``page["up"]``, ``page["x", {"limit": "a"}]``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = frozenset(sample.labels.items())
                assert (sample.name, labels) not in self._samples, f"{sample} is there twice"
                self._samples[sample.name, labels] = sample.value

    def get(self, name: str, **labels: str) -> float | None:
        """Return the value of a sample; None if the page does not have it."""
        return self._samples.get((PREFIX + name, frozenset(labels.items())))

    def of(self, name: str) -> Mapping[tuple[str, ...], float]:
        """Return the values of a metric by the values of its labels, in order of their names."""
        return {
            tuple(value for _, value in sorted(labels)): number
            for (each, labels), number in self._samples.items()
            if each == PREFIX + name
        }

    def __len__(self) -> int:
        return len(self._samples)


def read_page(throttle: Any, **options: Any) -> Page:
    """Scrape the limits of a Throttle or a Limiter."""
    return Page(generate_latest(make_registry(throttle, **options)).decode())
