"""Alerts and recording rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.expressions import ALERTS, DEPLOY, RECORDING_RULES, ROOT, find_unknown, rules
from tests.docs import shell_commands
from tests.servers.prometheus import promtool

UNIT_TESTS = Path(__file__).with_name("alerts.test.yml")
SITE = "https://celery-global-throttle.readthedocs.io/en/latest/"
PAGE = ROOT / "docs" / "how-to" / "alerts.md"

alerts = pytest.mark.parametrize("alert", rules(ALERTS), ids=lambda rule: str(rule["alert"]))


def test_promtool_accepts_the_files() -> None:
    promtool("check", "rules", RECORDING_RULES, ALERTS)
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")


@pytest.mark.thorough
def test_each_alert_fires_when_it_should() -> None:
    promtool("test", "rules", UNIT_TESTS)


@pytest.mark.parametrize("path", [ALERTS, RECORDING_RULES], ids=lambda path: str(path.stem))
def test_rules_use_metrics_and_labels_that_exist(path: Path) -> None:
    for rule in rules(path):
        assert not find_unknown(rule["expr"]), rule


@alerts
def test_an_alert_has_a_unit_test(alert: dict[str, Any]) -> None:
    assert f'alertname="{alert["alert"]}"' in UNIT_TESTS.read_text(encoding="utf-8")


@alerts
def test_an_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"].endswith(".")
    commands = re.findall(r"`([^`]+)`", alert["annotations"]["description"])
    assert commands or "logs of the workers" in alert["annotations"]["description"]
    for command in commands:
        # A name in place of "{{ $labels.limit }}", and a limit in place of LIMIT.
        filled = re.sub(r"\{\{[^}]*\}\}", "stripe", command)
        for words in shell_commands.commands(filled, prompt=False):
            shell_commands.check(words)


@alerts
def test_the_runbook_of_an_alert_is_a_heading_of_its_page(alert: dict[str, Any]) -> None:
    url = alert["annotations"]["runbook_url"]
    assert url == f"{SITE}how-to/alerts.html#{alert['alert'].lower()}"
    assert f"\n### {alert['alert']}\n" in PAGE.read_text(encoding="utf-8")
