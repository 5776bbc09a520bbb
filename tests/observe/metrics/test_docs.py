"""docs/reference/metrics.md has each metric, with its type and labels."""

from __future__ import annotations

import re

from celery_throttle.observe.metrics.table import METRICS
from tests.docs import pages


def test_each_metric_has_a_row_of_its_type_and_labels() -> None:
    rows = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(
            r"^\| `(\w+)` \| (\w+) \| (.*?)\| ", pages.read("reference/metrics.md"), re.MULTILINE
        )
    }
    assert rows == {metric.name: (metric.kind, metric.labels) for metric in METRICS}
