"""Every page and every action in a real browser, while workers run tasks and more arrive."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.web.security import ACTIONS
from celery_throttle.web.server import make_server, port_of
from tests.apps.removal import LEASE, LIMITS
from tests.servers.server import wait_until
from tests.web.browser import click, needs_browser, open_browser
from tests.web.test_browser import problems, text_of
from tests.workers import StartWorker

pytestmark = [
    needs_browser,
    pytest.mark.workers,
    pytest.mark.thorough,
    pytest.mark.timeout(900),
]

#: Far less than the load.
SLOW = "5/s burst 1"

#: Starts that are admitted, but not yet written down: those of all processes, and booked ones.
UNDER_WAY = 20

PAGES = {
    "/": "api",
    "/?search=ten": "tenant",
    "/limits/api": "Units granted per second",
    "/limits/tenant?key=1": "on the page of",
    "/limits/tenant/keys": "Keys of tenant",
    "/limits/api/waiting": "call",
    "/limits/api/report?hours=0.25": "Report on api",
    "/task": "Give the id of a task",
    "/fan-outs": "letters",
    "/workers": "Live workers",
    "/history": "define",
}


class Load:
    """Tasks of three tenants that a thread sends all the time, and a fan-out of a fourth."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url, decode_responses=True)
        self.app: Any = Celery("removal", broker=url, backend=url, set_as_current=False)
        backend: Any = self.app.backend
        backend.on_task_call = lambda *_: None  # nobody waits for results
        self.throttle = Throttle(self.app, LIMITS, lease=LEASE)

        @self.app.task(name="call", throttle=["api", "tenant:{tenant}"], shared=False, lazy=False)
        def call(tenant: int) -> None: ...

        self.throttle.register()
        self.sent: dict[str, int] = {}  #: the tenants of tasks
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._has_ended.wait(0.3):
            for tenant in (1, 2, 3):
                for _ in range(3):
                    self.sent[self.app.send_task("call", (tenant,)).id] = tenant

    def fan_out(self, name: str, tasks: int) -> set[str]:
        ids = [f"{name}-{n}" for n in range(tasks)]
        call = self.app.tasks["call"]
        self.throttle.fan_out((call.s(4).set(task_id=task_id) for task_id in ids), name)
        self.sent |= dict.fromkeys(ids, 4)
        return set(ids)

    def end(self) -> None:
        self._has_ended.set()
        self._thread.join()

    def close(self) -> None:
        self.end()
        self.client.close()
        self.throttle.store.close()
        self.app.close()

    def started(self) -> list[str]:
        ids: list[str] = self.client.lrange("starts", 0, -1)
        return ids

    def waiting(self, tenant: int) -> set[str]:
        found = {task.task_id for task in self.throttle["api"].list_waiting(most=10_000).tasks}
        return {task_id for task_id in found if self.sent.get(task_id) == tenant}

    def state(self, task_id: str) -> str:
        state: str = self.app.AsyncResult(task_id).state
        return state

    def wait_for_starts(self, more: int = 10) -> None:
        before = len(self.started())
        wait_until(lambda: len(self.started()) >= before + more, f"{more} more starts", 120)

    def wait_for_silence(self) -> None:
        """Wait until no task starts for two seconds, in which ten would."""
        end, before, since = time.monotonic() + 60, -1, 0.0
        while time.monotonic() < since + 2 or before < 0:
            assert time.monotonic() < end
            count = len(self.started())
            if count != before:
                before, since = count, time.monotonic()
            time.sleep(0.1)


@pytest.fixture
def load(redis_url: str, start_worker: StartWorker) -> Iterator[Load]:
    load = Load(redis_url)
    start = partial(start_worker, "tests.apps.removal", redis_url, env={"THROTTLE_URL": redis_url})
    start(wait=False)
    start(queues=["celery", "slow"])
    yield load
    load.close()


@contextmanager
def serving(load: Load) -> Iterator[str]:
    server = make_server(load.throttle, "127.0.0.1", 0, "", ACTIONS)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port_of(server)}"
    finally:
        server.close()
        thread.join()


class User:
    """Somebody with a browser who clicks on everything."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser, self.url = browser, url

    def read(self, path: str, text: str) -> None:
        self.browser.get(f"{self.url}{path}")
        self.wait_for(text)

    def wait_for(self, text: str) -> None:
        wait_until(
            lambda: text in text_of(self.browser, ".page"),
            f"{text!r} on {self.browser.current_url}",
            60,
        )

    def act(self, action: str, page: str, row: str = "", **fields: str) -> None:
        """Follow the link of an action, fill its form in, and confirm the preview."""
        self.read(page, action if row else "More")
        self.browser.execute_script("document.querySelector('details')?.setAttribute('open', '')")
        parent = f"//tr[th='{row}']//" if row else "//"
        self._click(f"{parent}a[text()='{action}']")
        self.wait_for("Optional; recorded with the change.")
        for name, text in {**fields, "reason": f"test of {action}"}.items():
            self.browser.find_element("id", name).clear()
            self.browser.find_element("id", name).send_keys(text)
        if fields:
            self._click("//button[text()='Preview']")
        self._click(f"//form[@method='post']//button[starts-with(., '{action}')]")
        self.wait_for("Done: ")
        self.wait_for(f"by web: test of {action}")

    def _click(self, path: str) -> None:
        click(self.browser, "xpath", path)


def test_every_page_and_every_action_under_load(load: Load) -> None:
    with serving(load) as url, open_browser() as browser:
        user = User(browser, url)
        _change_the_limit(load, user)
        letters = load.fan_out("letters", 60)
        _read_all_pages(load, user)
        _remove_waiting_tasks(load, user)
        _steer_the_fan_out(load, user, letters)
        user.act("Undefine", "/limits/api")
        assert load.throttle["api"].status().clauses == (LIMITS["api"],)
        assert problems(browser) == []
    load.end()
    _check_that_no_task_is_lost(load)


def _change_the_limit(load: Load, user: User) -> None:
    """Define it, then pause it and lift the pause, in two ways."""
    load.wait_for_starts()
    user.act("Define", "/limits/api", limits=SLOW, **{"for": "1h"})
    began, before = time.monotonic(), len(load.started())
    load.wait_for_starts()
    starts, seconds = len(load.started()) - before, time.monotonic() - began
    assert starts <= 5 * seconds + UNDER_WAY
    user.act("Pause", "/limits/api", **{"for": "10m"})
    load.wait_for_silence()
    user.act("Resume", "/limits/api")
    load.wait_for_starts()
    user.act("Pause", "/limits/api", **{"for": "10m"})
    load.wait_for_silence()
    user.act("Reset", "/limits/api")
    load.wait_for_starts()
    user.act("Pause", "/limits/api", **{"for": "1h"})
    load.wait_for_silence()


def _read_all_pages(load: Load, user: User) -> None:
    for path, text in PAGES.items():
        user.read(path, text)
    task_id = next(iter(load.waiting(1)))
    user.read(f"/task?{urlencode({'id': task_id})}", "waits in a line of queue celery")
    user.read("/workers", "2")


def _remove_waiting_tasks(load: Load, user: User) -> None:
    """Drop, move and drain the tasks of a tenant each, of a limit that is paused."""
    dropped, moved, drained = (_wait_for_tasks(load, tenant) for tenant in (1, 2, 3))
    user.act("Drop", "/limits/tenant?key=1")
    assert {load.state(task_id) for task_id in dropped} == {"REVOKED"}
    user.act("Move", "/limits/tenant?key=2", queue="slow")
    user.act("Drain", "/limits/tenant?key=3")
    slow = load.throttle.qualify("slow")
    wait_until(
        lambda: slow in {one.name for one in load.throttle["api"].status().queues},
        "the tasks wait in the other queue",
        60,
    )
    # All of them wait again, as the limit is paused.
    wait_until(lambda: moved <= load.waiting(2) and drained <= load.waiting(3), "they wait", 60)
    load.wait_for_silence()
    assert not {*load.started()} & (dropped | moved | drained)


def _wait_for_tasks(load: Load, tenant: int) -> set[str]:
    wait_until(lambda: len(load.waiting(tenant)) >= 10, "ten tasks wait", 60)
    return load.waiting(tenant)


def _steer_the_fan_out(load: Load, user: User, letters: set[str]) -> None:
    def count() -> int:
        return len(letters & {*load.started()})

    user.act("Pause", "/fan-outs", "letters", **{"for": "1h"})
    user.act("Resume", "/limits/api")
    before = count()
    load.wait_for_starts(30)
    assert count() == before
    user.act("Resume", "/fan-outs", "letters")
    wait_until(lambda: count() > before, "the fan-out goes on", 120)
    user.act("Pause", "/limits/api", **{"for": "1h"})
    load.wait_for_silence()
    left = letters & load.waiting(4)
    assert left
    user.act("Cancel", "/fan-outs", "letters")
    assert {load.state(task_id) for task_id in left} == {"REVOKED"}
    user.act("Resume", "/limits/api")
    load.wait_for_starts(10)
    assert not left & {*load.started()}


def _check_that_no_task_is_lost(load: Load) -> None:
    """Each task has either started or been discarded."""
    sent = {*load.sent}

    def discarded() -> set[str]:
        return {one for one in sent - {*load.started()} if load.state(one) == "REVOKED"}

    wait_until(lambda: {*load.started()} | discarded() == sent, "all tasks have started", 300)
    assert len(load.started()) == len({*load.started()})
