"""examples/django_shop, served as in production, and its users."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from celery_throttle import Limiter
from tests.django.make_users import PASSWORD
from tests.programs import ROOT, run_python, search_path
from tests.servers.rabbitmq import listens
from tests.servers.server import free_port
from tests.tether import Tethered

#: The path of the page. The project is below a path of the web server.
PAGE = "/shop/admin/celery_throttle/limit/"

SERVERS = {
    "wsgi": (
        *("waitress", "--listen=127.0.0.1:{port}", "--url-prefix=/shop"),
        *("--call", "django.core.wsgi:get_wsgi_application"),
    ),
    "asgi": ("uvicorn", "--port={port}", "--lifespan=off", "tests.django.asgi:application"),
}


def env_of(store: str, directory: Path, settings: str = "tests.django.settings") -> dict[str, str]:
    """Return the environment of a process of the project; `directory`: of its database."""
    return {
        "SHOP_BROKER_URL": "memory://",
        "DATABASE": str(directory / "db.sqlite3"),
        "DJANGO_SETTINGS_MODULE": settings,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": search_path(ROOT / "examples" / "django_shop", directory),
        "THROTTLE_URL": store,
    }


@pytest.fixture(scope="module")
def shop_env(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the project's processes. Its database has the users."""
    env = env_of(server_url, tmp_path_factory.mktemp("shop"))
    run_python("-m", "tests.django.make_users", env=env)
    return env


@pytest.fixture(scope="module", params=SERVERS)
def origin(
    request: pytest.FixtureRequest,
    shop_env: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The URL of the project's web server."""
    port = free_port()
    command = [one.format(port=port) for one in SERVERS[request.param]]
    log = tmp_path_factory.mktemp("web") / "web.log"
    web = Tethered([sys.executable, "-m", *command], log, shop_env)
    web.wait_until(lambda: listens(port), seconds=200)
    yield f"http://127.0.0.1:{port}"
    print(web.log()[-4000:])
    web.end()


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    """The limits of the project, on the server."""
    limiter = Limiter(redis_url, {"stripe": "20/s burst 5", "mail": "2/s"})
    limiter.register()
    yield limiter
    limiter.store.close()


Login = Callable[[str], httpx.Client]


@pytest.fixture
def login(origin: str, limiter: Limiter) -> Iterator[Login]:  # noqa: ARG001  # shown by the page
    """Returns a client of a user; of nobody for an empty name."""
    clients: list[Any] = []

    def open_client(name: str) -> httpx.Client:
        client = httpx.Client(base_url=origin, timeout=100)
        clients.append(client)
        if name:
            client.get("/shop/admin/login/")
            reply = client.post(
                "/shop/admin/login/",
                data={
                    "username": name,
                    "password": PASSWORD,
                    "csrfmiddlewaretoken": client.cookies["csrftoken"],
                },
            )
            assert (reply.status_code == 302) is (name != "customer"), reply.text
        return client

    yield open_client
    for client in clients:
        client.close()
