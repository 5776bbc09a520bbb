"""The files of deploy/, and the metrics and labels that PromQL in them may use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from celery_throttle.observe.metrics.table import HISTOGRAM, METRICS, PREFIX

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
RECORDING_RULES = DEPLOY / "prometheus" / "recording_rules.yml"

#: Labels that Prometheus adds when it scrapes.
_TARGET_LABELS = frozenset({"job", "instance", "pod"})

_NAME = re.compile(r"\w*:celery_throttle_\w+:\w+|\bcelery_throttle_\w+")
_MATCHERS = re.compile(rf"({_NAME.pattern})\s*\{{([^}}]*)\}}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules(path: Path) -> list[dict[str, Any]]:
    """Return the rules of all groups of a file."""
    return [rule for group in load(path)["groups"] for rule in group["rules"]]


def labels_of_metrics() -> dict[str, frozenset[str]]:
    """Return the labels of each metric and recorded series, without those of the target."""
    known: dict[str, frozenset[str]] = {}
    for metric in METRICS:
        name, labels = PREFIX + metric.name, frozenset(metric.labels)
        known[name] = labels
        if metric.kind == HISTOGRAM:
            known |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels}
    for rule in rules(RECORDING_RULES):
        # The level of the name lists the labels that are left: limit_reason:...:rate5m.
        level = rule["record"].partition(":")[0]
        known[rule["record"]] = frozenset(level.split("_")) - {"fleet"}
    return known


def find_unknown(expression: str) -> set[str]:
    """Return the metrics and labels in an expression that do not exist."""
    known = labels_of_metrics()
    names = set(_NAME.findall(expression))
    unknown = names - known.keys()
    for name, matchers in _MATCHERS.findall(expression):
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        unknown |= {f"{name}{{{label}}}" for label in used - known[name] - _TARGET_LABELS}
    all_labels = _TARGET_LABELS.union(*(known[name] for name in names & known.keys()))
    for labels in _GROUPING.findall(expression):
        unknown |= set(re.findall(r"\w+", labels)) - all_labels
    return unknown
