"""The dashboard for Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.expressions import DEPLOY, find_unknown
from tests.servers.prometheus import promtool

DASHBOARD: dict[str, Any] = json.loads(
    (DEPLOY / "grafana" / "celery_throttle.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]

#: A value for each variable of Grafana, so that Prometheus can parse the query.
VARIABLES = {"$__rate_interval": "5m", "$job": "shop", "$limit": "stripe"}


def queries() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (annotation["expr"] for annotation in DASHBOARD["annotations"]["list"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found
            yield f"sum by ({found[2]}) ({found[1]})"


def test_queries_use_metrics_and_labels_that_exist() -> None:
    for query in queries():
        assert not find_unknown(query.replace("ALERTS", "")), query


def test_prometheus_parses_each_query(tmp_path: Path) -> None:
    rules = []
    for number, query in enumerate(queries()):
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)  # noqa: PLW2901  # one after the other
        assert "$" not in query, query
        rules.append({"record": f"query:{number}", "expr": query})
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", path)


def test_each_query_is_of_one_fleet() -> None:
    for query in queries():
        selectors = len(re.findall(r'job="\$job"', query))
        assert selectors == len(re.findall(r"\{", query)) or "(celery_throttle_up)" in query, query


def test_slots_are_shown_beside_those_that_may_be_in_use() -> None:
    """An adaptive limit learns its slots: those in use say little without their number."""
    shown = [
        {
            match
            for target in panel.get("targets", ())
            for match in re.findall(r"slots_\w+", target["expr"])
        }
        for panel in PANELS
    ]
    assert [names for names in shown if names] == [{"slots_held", "slots_in_force"}]


def test_panels_have_an_identity_a_description_and_a_place_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        own = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Overview", "Limit $limit", "Fleet"]
