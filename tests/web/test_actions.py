"""Actions: their forms, previews, changes, and what the log of changes has of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from celery_throttle import Limiter
from celery_throttle.web import actions, create_app
from celery_throttle.web.security import ACTIONS
from tests.apps.operated import add_worker, make_app
from tests.cli.conftest import fill
from tests.web.conftest import Site, text_of

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def acting(redis_url: str) -> Iterator[Site]:
    """A page on which ann may do everything."""
    app: Any = make_app(redis_url)
    app.throttle.register()
    page = create_app(app.throttle, auth=lambda _: "ann", actions=ACTIONS)
    yield Site(app, page.test_client())
    app.throttle.store.close()
    app.close()


def confirm(site: Site, path: str, reason: str = "", **fields: str) -> str:
    """Preview an action, and submit the form of the preview as a browser does.

    Return the text of the page that follows.
    """
    page = site.client.get(path, query_string={"preview": "1", **fields})
    assert page.status_code == 200, text_of(page.text)
    action, filled = form_of(page.text)
    reply = site.client.post(action, data={**filled, "reason": reason}, headers=SAME_ORIGIN)
    assert reply.status_code == 303, text_of(reply.text)
    return site.read(reply.location)


def form_of(page: str) -> tuple[str, dict[str, str]]:
    """Return the address and the hidden fields of the form that is sent by POST."""
    found = re.search(r'<form[^>]*method="post" action="([^"]*)">(.*?)</form>', page, re.DOTALL)
    assert found
    hidden = re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', found[2])
    return unescape(found[1]), {name: unescape(value) for name, value in hidden}


def newest(site: Site) -> Any:
    return site.app.throttle.changes(most=1)[0]


def test_pause_and_resume(acting: Site) -> None:
    add_worker(acting.app)
    fill(acting.app, 5)
    assert "How long" not in acting.read("/limits/mail/resume")
    preview = acting.client.get("/limits/mail/pause?preview=1&for=10m").text
    assert "5 tasks wait; the last would start a" in text_of(preview)  # at, or after
    assert re.search("later|earlier|instead of", preview)
    page = confirm(acting, "/limits/mail/pause", "incident 12", **{"for": "10m"})
    assert "Done: mail: paused for 10 min, by ann (web): incident 12" in page
    assert newest(acting).author.reason == "incident 12"
    pause = acting.app.throttle["mail"].status().pauses[0]
    assert 590 < pause.seconds <= 600
    page = confirm(acting, "/limits/mail/resume")
    assert "Done: mail: resumed" in page
    assert not acting.app.throttle["mail"].status().pauses
    assert "It is not paused." in acting.read("/limits/mail/resume")
    assert "Nothing had to be changed" in confirm(acting, "/limits/mail/resume")


def test_a_resume_leaves_paused_keys(acting: Site) -> None:
    acting.app.throttle["mail", "t1"].pause(600)
    assert "It is not paused. 1 key stays paused." in acting.read("/limits/mail/resume")
    acting.app.throttle["mail"].pause(600)
    page = acting.read("/limits/mail/resume")
    assert "It is not paused" not in page
    assert "1 key stays paused." in page


def test_what_a_definition_replaces(acting: Site) -> None:
    acting.app.throttle["mail"].define("7/s", weight=3)
    for action in ("define", "undefine"):
        assert "In force now: 7/s; weight 3." in acting.read(f"/limits/mail/{action}")


def test_no_task_to_remove(acting: Site) -> None:
    for path in ("drop", "drain", "move?queue=slow&preview=1"):
        html = acting.client.get(f"/limits/mail/{path}").text
        assert "No task waits for limit mail." in text_of(html)
        assert "<button" not in html.partition("<main")[2]


def test_a_pause_without_an_end(acting: Site) -> None:
    fill(acting.app, 1)
    assert "none starts until it is resumed" in acting.read("/limits/mail/pause?preview=1")
    assert "paused until it is resumed" in confirm(acting, "/limits/mail/pause")


def test_a_pause_is_not_shortened(acting: Site) -> None:
    confirm(acting, "/limits/mail/pause", **{"for": "1h"})
    preview = acting.read("/limits/mail/pause?preview=1&for=10m")
    assert "This changes nothing: limit mail is paused for" in preview
    assert "and a pause is never shortened. Resume it first." in preview
    page = confirm(acting, "/limits/mail/pause", **{"for": "10m"})
    assert "Nothing had to be changed" in page
    assert len(acting.app.throttle.changes()) == 1


def test_a_key(acting: Site) -> None:
    fill(acting.app, 4, tenants=2)
    page = confirm(acting, "/limits/mail/pause", key="t1")
    assert "Done: mail:t1: paused" in page
    status = acting.app.throttle["mail"].status()
    assert (status.paused_keys, status.pauses) == (1, ())


def test_define_with_an_end_and_undefine(acting: Site) -> None:
    fill(acting.app, 20)
    limits = "600/m burst 2\r\n1000/h burst 50"
    fields = {"limits": limits, "for": "1h", "weight": "3"}
    preview = acting.client.get("/limits/mail/define", query_string={"preview": 1, **fields})
    assert "20 tasks wait" in text_of(preview.text)
    page = confirm(acting, "/limits/mail/define", "gold plan", **fields)
    assert (
        "Done: mail: 600/m burst 2; 1000/h burst 50 for 1 h instead of 20/m by ann (web): gold "
        "plan mail: weight 3 for 1 h by ann (web): gold plan"
    ) in page
    assert "20/m -> 600/m burst 2; 1000/h burst 50 for 1 h" in page
    status = acting.app.throttle["mail"].status()
    assert status.clauses == ("600/m burst 2", "1000/h burst 50")
    assert (status.weight, status.origin.author.by) == (3, "ann (web)")
    assert status.origin.until is not None
    assert "It will be: 20/m" in acting.read("/limits/mail/undefine")
    page = confirm(acting, "/limits/mail/undefine", "back to normal")
    assert "mail: no weight of its own instead of weight 3 by ann (web)" in page
    assert acting.app.throttle["mail"].status().clauses == ("20/m",)
    assert newest(acting).author.reason == "back to normal"


def test_mistakes_are_shown_beside_their_fields(acting: Site) -> None:
    fields = {"limits": "50/s\n5 per <b>", "weight": "x", "for": "soon", "reason": "kept"}
    before = acting.app.throttle.changes()
    for method, arguments in (("get", "query_string"), ("post", "data")):
        reply = getattr(acting.client, method)(
            "/limits/mail/define",
            **{arguments: {"preview": "1", **fields}},
            headers=SAME_ORIGIN,
        )
        page = text_of(reply.text)
        assert reply.status_code == 400
        assert reply.text.count('aria-invalid="true"') == 3
        assert "'soon' is no duration; allowed:" in page
        assert "weight 'x' is no number; allowed: 1 to 100" in page
        assert 'value="kept"' in reply.text
        assert "5 per &lt;b&gt;</textarea>" in reply.text
    assert acting.app.throttle.changes() == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "neither a limit nor a weight is given"),
        ({"limits": "3 at once"}, "cannot switch between a rate and slots"),
        ({"limits": "\n".join(21 * ["5/s"])}, "has 21 limits; allowed: 1 to 20"),
        ({"weight": "101"}, "weight"),
        ({"weight": 5000 * "9"}, "is no number; allowed: 1 to 100"),
        ({"limits": "5/s", "for": "4000w"}, "not allowed"),
    ],
)
def test_mistakes_in_a_definition(acting: Site, fields: dict[str, str], message: str) -> None:
    before = acting.app.throttle.changes()
    path = "/limits/mail/define"
    replies = (
        acting.client.get(path, query_string={"preview": "1", **fields}),
        acting.client.post(path, data=fields, headers=SAME_ORIGIN),
    )
    for reply in replies:
        page = text_of(reply.text)
        assert (reply.status_code, message in page) == (400, True), page
    assert acting.app.throttle.changes() == before


def test_a_long_reason(acting: Site) -> None:
    data = {"reason": "x" * 501}
    reply = acting.client.post("/limits/mail/pause", data=data, headers=SAME_ORIGIN)
    assert (reply.status_code, "up to 500 characters" in text_of(reply.text)) == (400, True)
    assert not acting.app.throttle["mail"].status().pauses


def test_reset(acting: Site) -> None:
    day = acting.app.throttle["day"]
    day.try_acquire(60)
    assert "more can start in a window than limit day allows" in acting.read("/limits/day/reset")
    confirm(acting, "/limits/day/reset", "quota bought")
    assert day.peek().remaining == 100
    assert newest(acting).author.reason == "quota bought"


def test_drop(acting: Site) -> None:
    fill(acting.app, 12)
    assert "12 tasks wait for limit mail: 12 in queue celery." in acting.read("/limits/mail/drop")
    page = confirm(acting, "/limits/mail/drop", "sent twice")
    assert "Done: mail: dropped 12 tasks by ann (web): sent twice" in page
    assert acting.app.throttle["mail"].count_waiting().waiting == 0
    result = acting.app.AsyncResult("id3")
    assert (result.state, str(result.result)) == ("REVOKED", "sent twice")


def test_drop_one_key(acting: Site) -> None:
    send = acting.app.tasks["send"]
    acting.app.throttle.fan_out([send.s(f"a b{n % 2}", n) for n in range(6)], "odd")
    page = acting.read("/limits/mail/drop?key=a b1")
    assert "3 tasks wait for limit mail of key a b1" in page
    assert "dropped 3 tasks" in confirm(acting, "/limits/mail/drop", key="a b1")
    assert acting.app.throttle["mail"].count_waiting().waiting == 3


def test_removed_tasks_are_in_the_report(acting: Site) -> None:
    fill(acting.app, 6, tenants=2)
    confirm(acting, "/limits/mail/drop", key="t0")
    report = acting.read("/limits/mail/report")
    assert "Tasks dropped 0 Tasks removed 3 by drain, move or drop" in report
    assert "3 removed" in acting.read("/limits/mail")
    acting.app.throttle.fan_out_named("nightly").cancel()
    assert "Tasks revoked 3" in acting.read("/limits/mail/report")


def test_drain_and_move(acting: Site) -> None:
    fill(acting.app, 6, tenants=2)
    preview = acting.read("/limits/mail/move?preview=1&queue=slow")
    assert "Move the waiting tasks of limit mail Edit" in preview
    assert "Continue" not in preview
    assert "No live worker consumes queue slow: the tasks wait there until one does." in preview
    page = confirm(acting, "/limits/mail/move", "slow lane", key="t0", queue="slow")
    assert "moved 3 tasks to queue slow by ann (web): slow lane" in page
    assert "drained 3 tasks by ann (web)" in confirm(acting, "/limits/mail/drain")
    with acting.app.connection_for_read() as connection:
        sizes = [connection.default_channel.client.llen(name) for name in ("slow", "celery")]
    assert sizes == [3, 3]
    reply = acting.client.get("/limits/mail/move?preview=1&queue=")
    assert (reply.status_code, "This is empty" in reply.text) == (400, True)


def test_a_long_removal_goes_on_with_another_request(
    acting: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(acting.app, 250)
    monkeypatch.setattr(actions, "REMOVAL_SECONDS", 0.0)
    page = confirm(acting, "/limits/mail/drop", "too many")
    assert "Some tasks are left: mail: dropped 100 tasks by ann (web): too many" in page
    assert "150 tasks wait for limit mail" in page
    assert "Continue with the tasks left" in page
    assert acting.app.throttle["mail"].count_waiting().claimed == 0
    confirm(acting, "/limits/mail/drop", "too many")
    assert "Done: mail: dropped 50 tasks" in confirm(acting, "/limits/mail/drop", "too many")
    assert acting.app.AsyncResult("id249").state == "REVOKED"


def test_fan_outs(acting: Site) -> None:
    fill(acting.app, 4, name="a b/c")
    job = acting.app.throttle.fan_out_named("a b/c")
    assert "4 tasks wait" in acting.read("/fan-outs/pause?name=a b/c&preview=1")
    page = confirm(acting, "/fan-outs/pause", "later", name="a b/c", **{"for": "1h"})
    assert "paused for 1 h, by ann (web): later" in page
    assert job.progress().paused > 0
    confirm(acting, "/fan-outs/resume", "now", name="a b/c")
    assert not job.progress().paused
    page = confirm(acting, "/fan-outs/cancel", "wrong list", name="a b/c")
    assert "cancelled 4 tasks by ann (web): wrong list" in page
    assert (job.progress().cancelled, job.progress().waiting) == (True, 0)
    assert acting.app.AsyncResult("id0").state == "REVOKED"
    acting.read("/fan-outs/cancel?name=none", 404)


def test_unknown_limits(acting: Site) -> None:
    for name in ("pause?preview=1", "resume", "undefine", "reset", "drop"):
        acting.read(f"/limits/none/{name}", 404)
    acting.read("/limits/none/define?preview=1&weight=5", 404)
    acting.read("/limits/none/define?preview=1&limits=5/s&key=t1", 404)
    assert acting.client.post("/limits/none/pause", headers=SAME_ORIGIN).status_code == 404


def test_only_allowed_actions_are_offered(site: Site) -> None:
    assert "Actions" not in site.html("/limits/mail")
    page = create_app(site.app.throttle, auth=lambda _: True, actions=["resume"]).test_client()
    assert "Actions" not in page.get("/limits/mail").text
    site.app.throttle["mail"].pause(60)
    html = page.get("/limits/mail").text
    assert re.findall(r'class="action[^"]*" href="([^"]*)"', html) == ["/limits/mail/resume"]
    page.post("/limits/mail/resume", headers=SAME_ORIGIN)


def test_only_actions_that_apply_are_offered(acting: Site) -> None:
    def offered(path: str = "/limits/mail") -> list[list[str]]:
        html = acting.html(path)
        head, _, more = html.partition("<details>")
        return [re.findall(r'class="action[^"]*" href="/[^"]*/(\w+)', one) for one in (head, more)]

    mail = acting.app.throttle["mail"]
    rare = ["reset", "drain", "move", "drop"]
    assert offered() == [["pause", "define"], rare]
    fill(acting.app, 2, tenants=1)
    mail.pause(60)
    mail.define("9/m")
    assert offered() == [["resume", "define", "undefine"], ["pause", *rare]]
    assert offered("/limits/mail?key=t0")[0] == ["pause", "define", "undefine"]
    fill(acting.app, 2, name="nightly")
    assert offered("/fan-outs")[0] == ["pause", "cancel"]
    acting.app.throttle.fan_out_named("nightly").pause(60)
    assert offered("/fan-outs")[0] == ["pause", "resume", "cancel"]


def test_define_begins_with_what_is_in_force(acting: Site) -> None:
    acting.app.throttle["mail"].define(["7/m", "90/h"], weight=3, by="ann")
    assert ">\n7/m\n90/h</textarea>" in acting.html("/limits/mail/define")
    confirm(acting, "/limits/mail/define", limits="7/m\r\n90/h", weight="5")
    assert newest(acting).action == "weight"  # the limits were left as they are
    confirm(acting, "/limits/mail/define", limits="7/m\n90/h", **{"for": "1h"})
    assert (newest(acting).action, newest(acting).new) == ("define", "7/m; 90/h")


def test_a_duration_is_chosen_or_typed_and_the_reason_is_given_first(acting: Site) -> None:
    html = acting.html("/limits/mail/pause?reason=incident+12")
    assert re.findall(r'type="radio" name="for" value="(\w*)"', html) == [
        "",
        "10m",
        "1h",
        "4h",
        "1d",
    ]
    assert 'name="reason" type="text" value="incident 12"' in html
    chosen = acting.client.get("/limits/mail/pause?for=1h&for=&preview=1&reason=x+y").text
    action, fields = form_of(chosen)
    assert (fields["for"], fields["reason"]) == ("1h", "x y")
    assert 'type="text" value="x y"' not in chosen
    typed = acting.client.get("/limits/mail/pause?for=1h&for=90s&preview=1").text
    assert form_of(typed)[1]["for"] == "90s"
    assert acting.client.post(action, data=fields, headers=SAME_ORIGIN).status_code == 303
    assert newest(acting).author.reason == "x y"


def test_without_an_app(acting: Site) -> None:
    limiter = Limiter(acting.app.throttle.settings.url)
    page = create_app(limiter, auth=lambda _: True, actions=ACTIONS).test_client()
    offered = re.findall(
        r'class="action[^"]*" href="/limits/mail/(\w+)"', page.get("/limits/mail").text
    )
    assert offered == ["pause", "define", "reset"]
    for path in ("/limits/mail/drop", "/fan-outs/pause?name=x"):
        reply = page.get(path)
        assert (reply.status_code, "needs the app" in reply.text) == (403, True)
    reply = page.post("/limits/mail/pause", data={"for": "5m"}, headers=SAME_ORIGIN)
    assert reply.status_code == 303
    assert newest(acting).author.by == "web"
    limiter["mail"].resume()


def test_an_error_after_a_part_of_the_change(acting: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("hidden-word")

    fill(acting.app, 2)
    monkeypatch.setattr(acting.app.backend, "mark_as_revoked", fail)
    reply = acting.client.post("/limits/mail/drop", headers=SAME_ORIGIN)
    assert reply.status_code == 500
    assert "Part of the change may have been made" in reply.text
    assert "hidden-word" not in reply.text
    assert acting.app.throttle["mail"].count_waiting().waiting == 2
