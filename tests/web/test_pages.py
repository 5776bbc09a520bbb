"""What each page shows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_throttle import Limiter
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.records import record_totals
from celery_throttle.web import create_app
from tests.apps.operated import add_worker
from tests.cli.conftest import fill
from tests.servers.server import wait_until
from tests.web.conftest import Site, text_of
from tests.workers import StartWorker

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


def test_limits(site: Site) -> None:
    fill(site.app, 120, tenants=3)
    site.app.throttle["day"].try_acquire(90)
    name, in_force, origin, used, waiting, runnable, oldest, end, _ = site.row("/", "mail")
    assert (name, in_force, origin, used, waiting) == ("mail", "20/m", "code", "by key", "120")
    assert runnable.isdigit()
    assert re.fullmatch(f"since {TIME}", oldest)
    assert end == "no worker"
    assert site.row("/", "day")[1:8] == ["100/d burst 100", "code", "90/100", "0", "0", "-", "-"]
    assert "No live worker" in site.read("/")
    assert "Stranded: 120 tasks in queue celery: no live worker consumes it." in site.read("/")
    add_worker(site.app)
    assert re.fullmatch(f"(after )?{TIME}", site.row("/", "mail")[-2])


def test_a_pause_and_a_definition_have_their_authors(site: Site) -> None:
    site.app.throttle["mail"].pause(600, reason="incident 12", by="ann@web")
    site.app.throttle["day"].define("90/d burst 90", lasts=60, reason="fewer", by="bob@web")
    paused = site.row("/", "mail")[0]
    assert re.fullmatch(f"mail Paused until {TIME} , by ann@web : incident 12", paused)
    assert re.fullmatch(f"run time until {TIME} , by bob@web : fewer", site.row("/", "day")[2])
    page = site.read("/limits/mail")
    assert re.search(f"Paused until {TIME} , by ann@web : incident 12", page)


def test_limits_are_searched_sorted_and_divided(site: Site) -> None:
    fill(site.app, 3)
    for number in range(150):
        site.app.throttle[f"extra-{number:03}"].define("1/s")
    first = site.read("/?search=EXTRA")
    assert "extra-000" in first
    assert "mail" not in first
    assert "Page 1 of 2, 150 limits Next" in first
    assert 'href="/?search=EXTRA&amp;page=2"' in site.html("/?search=EXTRA")
    assert 'href="/?endpoint=x&amp;page=2"' in site.html("/?endpoint=x")
    assert "extra-149" in site.read("/?search=EXTRA&page=2")
    assert "extra-149" in site.read("/?search=EXTRA&page=99")
    assert site.read("/?page=no&search=EXTRA") == first

    def shown(path: str) -> list[str]:
        return re.findall(r'<tr id="limit-([^"]*)"', site.html(path))

    assert shown("/")[:2] == ["mail", "api"]
    assert shown("/?sort=name")[:2] == ["api", "day"]
    site.app.throttle["extra-100"].pause(60)
    assert shown("/")[:3] == ["extra-100", "mail", "api"]
    assert "No limit has zzz in its name" in site.read("/?search=zzz")


def test_no_limits(redis_url: str) -> None:
    client = create_app(Limiter(redis_url), auth=lambda _: True).test_client()
    assert "No limits. The server gets the limits of the code" in text_of(client.get("/").text)
    assert "No fan-outs" in text_of(client.get("/fan-outs").text)
    assert "No changes" in text_of(client.get("/history").text)
    assert "No live workers" in text_of(client.get("/workers").text)


def test_one_limit(site: Site) -> None:
    fill(site.app, 120, tenants=3)
    site.app.throttle["mail", "t1"].pause(None)
    site.app.throttle["mail"].define("10/m", reason="slower", by="ann")
    page = site.read("/limits/mail")
    assert "Waiting 120 tasks of 3 keys oldest: since" in page
    assert re.search(r"Top keys Key Waiting t\d 40 t\d 40 t\d 40", page)
    assert "Paused keys Key Until t1 resumed" in page
    assert "Queues Queue Waiting Consumed celery 120 by no live worker" in page
    assert "fan-out nightly" in page
    assert "120 tasks parked" in page
    assert "20/m -> 10/m ann slower" in page


def test_an_unknown_limit_among_many(redis_url: str) -> None:
    server = Limiter(redis_url, {f"api-{n}": "5/s" for n in range(1000)} | {"mail": "5/s"})
    server.register()
    client = create_app(Limiter(redis_url), auth=lambda _: True).test_client()
    for path in ("/limits/mial", "/limits/mial/keys", "/limits/mial?key=t1"):
        reply = client.get(path)
        assert reply.status_code == 404
        assert "limit 'mial' is not defined Similar names: mail Name" in text_of(reply.text)
        assert 'href="/limits/mail"' in reply.text
        assert 'name="search" type="search" value="mial"' in reply.text
    page = text_of(client.get("/limits/api-10000").text)
    assert "Similar names: api-100 , api-10 , api-910 Name" in page
    assert "api-" not in text_of(client.get("/limits/none").text)


def test_the_last_429(site: Site) -> None:
    throttle = site.app.throttle
    assert "Last 429" not in site.read("/limits/mail")
    answers = {LimitRef("mail", "t1"): Feedback(refused=True)}
    throttle.run_plan(throttle.plans.learn(answers, ("id1", "send")))
    assert re.search(rf"Last 429 {TIME} , key t1 , by task id1 \(send\)", site.read("/limits/mail"))
    assert re.search(rf"Last 429 {TIME} , by task id1 \(send\)", site.read("/limits/mail?key=t1"))
    assert "Last 429" not in site.read("/limits/mail?key=t2")
    assert "mail:t1 429 by task id1 (send)" in site.read("/history")


def test_one_key(site: Site) -> None:
    fill(site.app, 120, tenants=3)
    page = site.read("/limits/mail?key=t1")
    assert "Waiting 40 tasks oldest" in page
    assert "Units granted per second" not in page  # of all keys
    assert "charts and counts of all keys together are on the page of mail" in page
    assert "is empty; allowed: text" in site.read("/limits/mail?key=a::b", 400)


def test_a_key_of_which_nothing_is_stored(site: Site) -> None:
    text = "Nothing is stored of key t9"
    assert text in site.read("/limits/mail?key=t9")
    assert text not in site.read("/limits/mail")
    mail = site.app.throttle["mail", "t9"]
    for use in (mail.acquire, lambda: mail.pause(60)):
        use()
        assert text not in site.read("/limits/mail?key=t9")
        mail.reset()
        assert text in site.read("/limits/mail?key=t9")
    site.app.throttle["mail", "t9"].define(weight=2)
    assert text not in site.read("/limits/mail?key=t9")
    site.app.throttle["mail", "t9"].undefine()
    fill(site.app, 10, tenants=10)
    assert text not in site.read("/limits/mail?key=t9")


@pytest.mark.workers
def test_an_idle_limit_with_keys(site: Site, redis_url: str, start_worker: StartWorker) -> None:
    """A worker reports the limits of which its tasks need keys."""
    assert site.row("/", "mail")[3] == "0/1"
    start_worker("tests.apps.operated", redis_url)
    wait_until(lambda: site.row("/", "mail")[3] == "by key", "the worker has reported it")
    assert site.row("/", "api")[3] != "by key"
    page = site.read("/limits/mail")
    assert "In force 20/m for each key" in page
    assert "each key has its own" in page
    assert "the limit:" not in page
    assert "the limit:" in site.read("/limits/api")
    assert "for each key" not in site.read("/limits/mail?key=t1")


def test_keys_are_links_both_ways(site: Site) -> None:
    signature = site.app.tasks["send"].s("São Paulo/50%", 1).set(task_id="one")
    site.app.throttle.fan_out([signature], "one")
    page = site.html("/limits/mail")
    (link,) = re.findall(r'<a class="key" href="([^"]*)">', page)
    assert "Waiting 1 task" in site.read(link.replace("&amp;", "&"))
    assert "Waiting 1 task" in site.read("/limits/mail?key=São+Paulo/50%2525")


def test_slots(site: Site) -> None:
    with site.app.throttle["slots"].slot():
        page = site.read("/limits/slots")
        assert "1 of 3 (3 at once)" in page
        assert re.search(f"Slots in use: 1 Holder Task Lease until .* - {TIME}", page)


def test_the_charts_show_use_against_the_limit(site: Site) -> None:
    throttle = site.app.throttle
    throttle["day"].try_acquire(50)
    throttle.run_plan(record_totals(throttle.observer))
    page = site.html("/limits/day")
    assert "50 units granted in 15 min, at most" in page
    assert re.search(r"\d UTC: \d[\d.]*/s</title>", page)
    assert "the limit: 100/d burst 100" in text_of(page)
    assert '<path d="M0 ' in page
    assert '<path d="M' in site.html("/")


def test_refusals(site: Site) -> None:
    throttle = site.app.throttle
    throttle["mail"].pause(60)
    throttle["mail"].try_acquire()
    assert "Calls refused: 1: 1 by a pause" in site.read("/limits/mail")


def test_lists_of_keys(site: Site) -> None:
    fill(site.app, 150, tenants=120)
    throttle = site.app.throttle
    throttle["mail", "t9"].pause(60)
    throttle["mail", "t8"].define("1/h")
    first, second = (site.read(f"/limits/mail/keys?page={number}") for number in (1, 2))
    assert "Page 1 of 2, 120 keys" in first
    assert len(set(re.findall(r"\bt\d+\b", first + second))) == 120
    assert "t9" in site.read("/limits/mail/keys?which=paused")
    assert "t8" in site.read("/limits/mail/keys?which=own")
    assert "allowed: waiting, paused, own" in site.read("/limits/mail/keys?which=all", 400)
    assert "none." in site.read("/limits/api/keys")
    site.read("/limits/none/keys", 404)


def test_waiting_tasks(site: Site) -> None:
    fill(site.app, 150, tenants=3)
    first, second = (site.html(f"/limits/mail/waiting?page={number}") for number in (1, 2))
    assert len(set(re.findall(r"\bid\d+\b", first + second))) == 150
    assert "Page 2 of 2, 150 tasks" in text_of(second)
    assert site.row("/limits/mail/waiting?key=t1", "id1")[1:4] == ["send", "celery", "t1"]
    assert "0 tasks wait" in site.read("/limits/day/waiting")


def test_a_report(site: Site) -> None:
    site.app.throttle["day"].try_acquire(50)
    page = site.read("/limits/day/report?hours=0.25")
    assert "Units granted 50, " in page
    assert "Refused by API 0" in page
    assert "Unknown. It was recorded for" in page
    assert "Report on day" in site.read("/limits/day/report")
    assert "allowed: from one second to seven days" in site.read(
        "/limits/day/report?hours=999", 400
    )


def test_why_a_task_waits(site: Site) -> None:
    add_worker(site.app)
    fill(site.app, 120, tenants=3)
    site.app.throttle["mail"].pause(600, reason="incident 12", by="ann")
    page = site.read("/task?id=id7")
    assert (
        "Task id7 (send) waits in a line of queue celery, 3rd of 40, at limit mail of key t1."
        in page
    )
    assert "Needs mail t1 : 1 unit api : 1 unit" in page
    assert re.search(f"Paused limit mail is paused until {TIME} , by ann", page)
    assert re.search(f"Expected start {TIME}", page)
    assert "is unknown here. It does not wait" in site.read("/task?id=nobody")
    assert "Give the id of a task" in site.read("/task")
    site.app.backend.store_result("ended", 1, "SUCCESS")
    assert "Result backend SUCCESS" in site.read("/task?id=ended")


def test_arguments_are_shown_if_enabled(site: Site) -> None:
    fill(site.app, 1, name="odd<b>")
    throttle = site.app.throttle
    secret = site.app.tasks["send"].s("t0", 7).set(task_id="other")
    throttle.fan_out([secret], "other")
    for shown in (True, False):
        page = create_app(throttle, auth=lambda _: True, show_arguments=shown).test_client()
        html = page.get("/task?id=other").text
        assert "waits in a line" in html
        assert ("(&#39;t0&#39;, 7)" in html) == shown
        assert ("Arguments" in html) == shown
        assert "Arguments" not in page.get("/task?id=none").text


def test_fan_outs(site: Site) -> None:
    add_worker(site.app)
    fill(site.app, 120, tenants=3)
    fill(site.app, 2, name="other")
    row = site.row("/fan-outs", "nightly")
    assert row[:5] == ["nightly", "running", "0%", "120", "120"]
    assert re.fullmatch(f"(after )?{TIME}", row[-1])
    assert "nightly" not in site.read("/fan-outs?search=OTHER")
    site.app.throttle.fan_out_named("nightly").pause(60)
    assert re.fullmatch(f"paused until {TIME}", site.row("/fan-outs", "nightly")[1])


def test_history(site: Site) -> None:
    for number in range(1, 61):
        site.app.throttle["day"].define(f"{number}/d burst {number}", reason=f"reason {number}")
    page = site.html("/history")
    assert "59/d burst 59 -> 60/d burst 60" in text_of(page)
    assert len(re.findall(r"<tr>", page)) == 51
    (older,) = re.findall(r'rel="next" href="([^"]*)"', page)
    assert "9/d burst 9 -> 10/d burst 10" in site.read(older)
    assert "hx-get" not in site.html(older)


@pytest.mark.workers
def test_workers(site: Site, redis_url: str, start_worker: StartWorker) -> None:
    worker = start_worker("tests.apps.operated", redis_url)
    page = site.read("/workers")
    assert re.search(rf"{re.escape(worker.hostname)}:\d+:\w+ live \d", page)
    assert "Live workers 1" in page
    assert "1 live worker" in site.read("/")


def test_pages_of_a_limiter_without_celery(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"api": "10/s"})
    limiter.register()
    client: Any = create_app(limiter, auth=lambda _: True).test_client()
    for path in ("/", "/limits/api", "/task?id=x", "/fan-outs", "/workers", "/history"):
        assert client.get(path).status_code == 200
