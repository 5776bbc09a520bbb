"""examples/django_shop works with RabbitMQ, and docs/how-to/django.md shows its code."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.docs import pages
from tests.programs import ROOT, run_python, search_path
from tests.servers.rabbitmq import listens
from tests.servers.server import free_port, wait_until
from tests.tether import Tethered
from tests.workers import StartWorker

SHOP = ROOT / "examples" / "django_shop"
BLOCKS = pages.files("how-to/django.md")

TENANTS = ("acme", "globex")
ORDERS = 40

#: Tasks that may begin late: of each of two workers, one that runs and one that comes next.
LATE = 4


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_the_page_shows_the_code(name: str, code: str) -> None:
    assert code.strip() in (SHOP / name).read_text(encoding="utf-8")


def test_the_page_shows_all_that_matters() -> None:
    assert {name for name, _ in BLOCKS} == {
        *("shop/__init__.py", "shop/settings.py", "shop/celery.py", "shop/settings_test.py"),
        *("orders/tasks.py", "orders/views.py", "orders/balance.py", "orders/tests.py"),
        "shop/urls.py",
        "pyproject.toml",
    }


needs_pytest_django = pytest.mark.skipif(
    importlib.util.find_spec("pytest_django") is None, reason="pytest-django is not installed"
)


@needs_pytest_django
@pytest.mark.thorough
def test_its_own_tests_pass_and_leave_the_broker_of_the_shell_alone(
    tmp_path: Path, redis_url: str, client: Any
) -> None:
    env = {"SHOP_BROKER_URL": redis_url}
    run_python("-m", "pytest", "-p", "no:cacheprovider", str(SHOP), env=env, cwd=tmp_path)
    assert client.dbsize() == 0


@pytest.mark.thorough
@needs_pytest_django
def test_its_own_tests_send_nothing_to_a_broker_that_celery_prefers(
    tmp_path: Path, redis_url: str, client: Any
) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(SHOP)]
    env = {**os.environ, "PYTHONPATH": search_path(), "CELERY_BROKER_URL": redis_url}
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert client.dbsize() == 0
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"CELERY_BROKER_URL={redis_url} is set" in done.stderr


class Shop:
    """The project, with a database of its own, behind Django's own web server."""

    def __init__(self, broker: str, store: str, directory: Path) -> None:
        self._database = directory / "db.sqlite3"
        self.env = {
            "SHOP_BROKER_URL": broker,
            "THROTTLE_URL": store,
            "DATABASE": str(self._database),
            "PYTHONPATH": search_path(SHOP),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        run_python(str(SHOP / "manage.py"), "migrate", env=self.env)
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [str(SHOP / "manage.py"), "runserver", "--noreload", f"127.0.0.1:{port}"]
        self._web = Tethered([sys.executable, *command], directory / "web.log", self.env)
        self._web.wait_until(lambda: listens(port), seconds=100)

    def throttle(self, *arguments: str) -> str:
        return run_python("-m", "celery", "-A", "shop", "throttle", *arguments, env=self.env)

    def request(self, path: str, method: str = "GET") -> int:
        try:
            with urlopen(Request(self._url + path, method=method), timeout=100) as answer:  # noqa: S310  # a local server
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def times(self, column: str, tenant: str = "%") -> list[float]:
        query = f"SELECT {column} FROM orders_order WHERE tenant_id LIKE ? AND {column} NOTNULL"  # noqa: S608  # our own names
        with closing(sqlite3.connect(self._database)) as database:
            rows = database.execute(query, (tenant,)).fetchall()
        return sorted(datetime.fromisoformat(text).timestamp() for (text,) in rows)

    def end(self) -> None:
        print(self._web.log()[-4000:])
        self._web.end()


@pytest.fixture
def shop(rabbitmq_url: str, redis_url: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(rabbitmq_url, redis_url, tmp_path)
    yield shop
    shop.end()


@pytest.mark.workers
def test_limits_hold(shop: Shop, rabbitmq_url: str, start_worker: StartWorker) -> None:
    for _ in range(2):
        start_worker("shop", rabbitmq_url, env=shop.env, concurrency=1)
    for number in range(ORDERS):
        assert shop.request(f"/orders/{TENANTS[number % 2]}/", "POST") == 202
    assert shop.request("/balance/async/") == 200
    shown = json.loads(shop.throttle("ls", "--json"))
    assert {limit["name"] for limit in shown["limits"]} == {"stripe", "mail"}
    wait_until(lambda: len(shop.times("receipt_sent_at")) == ORDERS, "all receipts", 200)
    charges = shop.times("charged_at")
    assert len(charges) == ORDERS
    assert_under(charges, rate=20, burst=5)
    for tenant in TENANTS:
        assert_under(shop.times("receipt_sent_at", tenant), rate=2, burst=1)
    shop.throttle("pause", "stripe")
    assert shop.request("/balance/") == 503
    shop.throttle("resume", "stripe")
    assert shop.request("/balance/") == 200


def assert_under(times: list[float], *, rate: float, burst: int) -> None:
    """Admissions are exact; a task may begin later, while its process is stopped."""
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            window = times[last] - begin
            assert last - first + 1 <= burst + rate * window + LATE
