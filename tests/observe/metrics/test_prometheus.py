"""The page as a scraper gets it: its format, and servers that do not answer."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from celery_throttle import Limiter
from celery_throttle.observe.metrics.prometheus import ThrottleCollector, make_wsgi_app
from celery_throttle.observe.metrics.table import METRICS, shown_queues
from tests.observe.metrics.page import PREFIX, Page, read_page
from tests.programs import run_python
from tests.protocol import Protocol
from tests.servers.server import Server, free_port, wait_until

#: Names that would break the page if they were not escaped. Limits have names of letters.
HOSTILE = ('say "hi"', "two\nlines", "back\\slash\\n", "größe ☃", "{}=,", " ", "a\r\nb", "#")


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    limiter = Limiter(redis_url, {"api": "1/s"})
    limiter.register()
    yield limiter
    limiter.store.close()


def get(app: Any, query: str = "", accept: str = "") -> tuple[str, dict[str, str], bytes]:
    """Return status, headers and body of a request to a WSGI app."""
    environ: dict[str, Any] = {"QUERY_STRING": query, "HTTP_ACCEPT": accept}
    setup_testing_defaults(environ)
    found: list[Any] = []
    body = b"".join(app(environ, lambda status, headers: found.extend([status, headers])))
    return found[0], dict(found[1]), body


def test_a_registry_of_the_users_own(limiter: Limiter) -> None:
    registry = CollectorRegistry()
    own = Counter("own", "An own metric.", registry=registry)
    registry.register(ThrottleCollector(limiter))
    own.inc()
    text = generate_latest(registry).decode()
    assert "own_total 1.0" in text
    assert Page(text).get("up") == 1
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(ThrottleCollector(limiter))


def test_to_register_a_collector_calls_no_server() -> None:
    limiter = Limiter(f"redis://127.0.0.1:{free_port()}/0")
    names = {metric.name for metric in ThrottleCollector(limiter).describe()}
    assert names == {PREFIX + metric.name.removesuffix("_total") for metric in METRICS}
    assert not limiter.store.breaker.is_open


def test_the_wsgi_app(limiter: Limiter) -> None:
    app = make_wsgi_app(limiter)
    status, headers, body = get(app)
    assert (status, headers["Content-Type"].partition(";")[0]) == ("200 OK", "text/plain")
    assert Page(body.decode()).get("tasks_waiting", limit="api") == 0
    _, _, body = get(app, f"name[]={PREFIX}up")
    assert [line for line in body.decode().splitlines() if line[0] != "#"] == [f"{PREFIX}up 1.0"]


def test_the_page_as_openmetrics(limiter: Limiter) -> None:
    _, headers, body = get(make_wsgi_app(limiter), accept="application/openmetrics-text")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    found = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
    names = {family.name for family in found}
    assert f"{PREFIX}units_granted" in names


def test_hostile_names(redis_url: str) -> None:
    names = [f"limit-{n}.{letter}" for n, letter in enumerate("aZ_-")]
    lines = Protocol(redis_url, dict.fromkeys(names, "1/h"))
    for queue in HOSTILE:
        lines.park(f"t {queue}", [names[0]], queue=f"redis/0/{queue}", may_run=False)
    found = read_page(lines.limiter)
    lines.close()
    assert found.of("tasks_runnable").keys() == {(queue,) for queue in HOSTILE}
    assert found.of("tasks_waiting").keys() == {(name,) for name in names}


@pytest.mark.parametrize(
    ("queues", "own", "shown"),
    [
        (["redis/0/celery", "redis/0/a/b"], "", ["celery", "a/b"]),
        (["redis/0/celery", "redis/1/celery"], "", ["redis/0/celery", "redis/1/celery"]),
        (["redis/0/celery", "redis/1/mail"], "redis/0/", ["celery", "redis/1/mail"]),
        (["amqp/%2F/celery", "old"], "", ["celery", "old"]),
        (["redis/0/redis/1/x", "redis/1/x"], "redis/0/", ["redis/0/redis/1/x", "redis/1/x"]),
    ],
)
def test_queues_are_named_as_celery_names_them(
    queues: list[str], own: str, shown: list[str]
) -> None:
    assert [*shown_queues(queues, own).values()] == shown


def test_a_server_that_is_down_and_back(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_server.url.replace("redis://", "redis://:secret@")
    limiter = Limiter(own_server.url, {"api": "1/s"}, timeout=10)
    limiter.register()
    app = make_wsgi_app(limiter)
    assert Page(get(app)[2].decode()).get("up") == 1
    own_server.stop()
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        status, _, body = get(app)
        assert status == "200 OK"
        found = Page(body.decode())
        assert (found.get("up"), len(found)) == (0, 1)
    assert caplog.text.count("The metrics have no values") >= 1
    assert "secret" not in caplog.text
    assert url not in caplog.text
    own_server.start()
    wait_until(lambda: Page(get(app)[2].decode()).get("up"), "a page with values")
    assert Page(get(app)[2].decode()).get("tasks_waiting", limit="api") == 0
    limiter.store.close()


def test_a_scrape_of_a_server_that_hangs_ends_within_the_timeout(own_server: Server) -> None:
    Limiter(own_server.url, {"api": "1/s"}, timeout=10).register()

    def seconds_of_scrape() -> float:
        limiter = Limiter(own_server.url, timeout=0.5)
        began = time.monotonic()
        found = read_page(limiter)
        seconds = time.monotonic() - began
        limiter.store.close()
        assert (found.get("up"), len(found)) == (0, 1)
        return seconds

    own_server.signal(signal.SIGSTOP)
    try:
        # Other processes may delay some of them, but not all.
        assert any(seconds_of_scrape() < 1.5 for _ in range(5))
    finally:
        own_server.signal(signal.SIGCONT)


def test_limits_without_a_server() -> None:
    found = read_page(Limiter("memory://", {"api": "1/s"}))
    assert (found.get("up"), len(found)) == (0, 1)


def test_scrapes_at_the_same_time(limiter: Limiter) -> None:
    app, stop = make_wsgi_app(limiter), threading.Event()

    def use() -> int:
        calls = 0
        while not stop.is_set():
            limiter["api"].try_acquire()
            calls += 1
        return calls

    with ThreadPoolExecutor(9) as threads:
        calls = threads.submit(use)
        pages = [Page(body.decode()) for _, _, body in threads.map(lambda _: get(app), range(40))]
        stop.set()
    assert all(page.get("up") == 1 for page in pages)
    last = read_page(limiter)
    refused = last.get("refusals_total", limit="api", reason="limit")
    assert refused is not None
    assert last.get("units_granted_total", limit="api") == calls.result() - refused


def test_metrics_of_a_limiter_do_not_import_celery() -> None:
    code = "import sys, celery_throttle.observe.metrics.prometheus; print('celery' in sys.modules)"
    assert run_python("-c", code) == "False\n"


def test_the_extra_is_missing() -> None:
    code = """
import sys
sys.modules["prometheus_client"] = None
try:
    import celery_throttle.observe.metrics.prometheus
except Exception as error:
    print(error)
"""
    assert run_python("-c", code).endswith('celery-global-throttle[metrics]"\n')
