"""The pages of an app with several shards, of which one may be lost."""

from __future__ import annotations

import re

import pytest

from celery_throttle.web import create_app
from celery_throttle.web.security import ACTIONS
from tests.shards import Scene
from tests.web.conftest import Site
from tests.web.test_actions import confirm

pytestmark = [pytest.mark.workers, pytest.mark.thorough]

LOST = "What is in shard erp cannot be read: "


@pytest.fixture
def site(scene: Scene) -> Site:
    page = create_app(scene.throttle, auth=lambda _: "ann", actions=ACTIONS)
    return Site(scene.app, page.test_client())


@pytest.mark.parametrize("path", ["/", "/?sort=name"])
def test_limits_of_all_shards(scene: Scene, site: Site, path: str) -> None:
    assert {name: site.row(path, name)[4] for name in Scene.LIMITS} == dict.fromkeys(
        Scene.LIMITS, "4"
    )
    with scene.lost():
        text = site.read(path)
        assert LOST in text
        assert "mail" in text
        assert "tenant" in text


@pytest.mark.parametrize("name", [*Scene.LIMITS])
def test_the_pages_of_a_limit(site: Site, name: str) -> None:
    assert "4 tasks" in site.read(f"/limits/{name}")
    assert "No tasks" not in site.read(f"/limits/{name}/report?hours=0.25")
    tasks = re.findall(rf">({name}-[0-9-]+)<", site.html(f"/limits/{name}/waiting"))
    assert len({*tasks}) == 4
    assert f"Waits at {name}" in site.read(f"/task?id={tasks[0]}")


def test_keys_of_all_shards(site: Site) -> None:
    keys = re.findall(r'class="key" href="[^"]*">([^<]*)<', site.html("/limits/tenant/keys"))
    assert sorted(keys) == ["0", "1", "2", "3"]
    assert "1 task" in site.read("/limits/tenant?key=2")


def test_workers_and_fan_outs(scene: Scene, site: Site) -> None:
    assert scene.worker.hostname in site.read("/workers")
    site.read("/fan-outs")
    with scene.lost():
        assert LOST in site.read("/workers")
        assert LOST in site.read("/fan-outs")
        assert LOST in site.read("/task?id=nothing")


def test_changes_of_all_shards(scene: Scene, site: Site) -> None:
    for name in Scene.LIMITS:
        scene.throttle[name].pause(60, reason=f"a pause of {name}")
        scene.throttle[name].resume()
    first = site.html("/history")
    assert all(f"a pause of {name}" in first for name in Scene.LIMITS)
    with scene.lost():
        text = site.read("/history")
        assert LOST in text
        assert "a pause of mail" in text
        assert "a pause of erp" not in text


@pytest.mark.parametrize("name", [*Scene.LIMITS])
def test_actions(scene: Scene, site: Site, name: str) -> None:
    preview = site.read(f"/limits/{name}/pause?preview=1&for=1h")
    assert "4 tasks wait" in preview
    confirm(site, f"/limits/{name}/pause", **{"for": "1h"})
    assert scene.throttle[name].status().pauses
    confirm(site, f"/limits/{name}/resume")
    confirm(site, f"/limits/{name}/define", limits="1/d")
    assert scene.throttle[name].status().clauses == ("1/d",)
    assert "1/h" in confirm(site, f"/limits/{name}/undefine")
