"""The stock fixtures of pytest-celery, with our image, our brokers and two workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RedisContainer,
)
from pytest_docker_tools import build, container, fxtr, wrappers

from tests.smoke.fleet import NEXT_RATE, PROCESSES, RATE, Fleet
from tests.smoke.local_engine import ROOT, LocalEngine

#: The client of the Docker engine; None if no engine answers.
_DOCKER = pytest.StashKey[Any]()


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[_DOCKER] = docker.from_env()
    except docker.errors.DockerException:
        config.stash[_DOCKER] = None


def pytest_report_header(config: pytest.Config) -> str:
    if config.stash[_DOCKER] is None:
        return "smoke: local processes, as no Docker engine answers"
    return "smoke: containers"


@pytest.fixture(scope="session")
def docker_client(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    engine = pytestconfig.stash[_DOCKER] or LocalEngine(tmp_path_factory.mktemp("engine"))
    with pytest.MonkeyPatch.context() as patch:
        # pytest-celery looks for servers at localhost: at their published ports, wherever it runs.
        patch.setattr(wrappers.container, "tests_inside_container", lambda: False)
        yield engine
    engine.close()


# Brokers. Limits, lines and results are in the backend, which no test restarts.


@pytest.fixture(params=["redis", "valkey", "rabbitmq"])
def broker_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def celery_broker(request: pytest.FixtureRequest, broker_name: str) -> Any:
    vendor = "rabbitmq" if broker_name == "rabbitmq" else "redis"  # Valkey is a kind of Redis here
    return request.getfixturevalue(f"celery_{vendor}_broker")


@pytest.fixture
def celery_backend(celery_redis_backend: Any) -> Any:
    return celery_redis_backend


@pytest.fixture
def default_rabbitmq_broker_image() -> str:
    return "rabbitmq:4-alpine"


@pytest.fixture
def default_redis_broker_image(broker_name: str) -> str:
    return "valkey/valkey:9-alpine" if broker_name == "valkey" else "redis:8-alpine"


@pytest.fixture
def default_redis_backend_image(default_redis_broker_image: str) -> str:
    return default_redis_broker_image


@pytest.fixture
def default_redis_broker_command(broker_name: str) -> list[str]:
    # What the broker has must outlive its restart.
    redis_server, *options = RedisContainer.command("--appendonly", "yes")
    return ["valkey-server" if broker_name == "valkey" else redis_server, *options]


@pytest.fixture
def default_redis_backend_command(default_redis_broker_command: list[str]) -> list[str]:
    return default_redis_broker_command


# Workers.


@pytest.fixture(scope="session", params=os.environ.get("SMOKE_CELERY", "5.7").split())
def default_worker_celery_version(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


celery_base_worker_image = build(
    path=str(ROOT),
    tag="celery-throttle-smoke:{default_worker_celery_version}",
    buildargs={"CELERY_VERSION": "{default_worker_celery_version}.*"},
)


def _worker_container(environment: str) -> Any:
    """The definition of pytest-celery's own `default_worker_container`, once more."""
    return container(
        image="{celery_base_worker_image.id}",
        ports=fxtr("default_worker_ports"),
        environment=fxtr(environment),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
        wrapper_class=CeleryWorkerContainer,
        timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
        command=fxtr("default_worker_command"),
    )


second_worker_container = _worker_container("default_worker_env")
next_worker_container = _worker_container("next_worker_env")


@pytest.fixture
def default_worker_initial_content() -> dict[str, bytes]:
    return {"app.py": Path(__file__).with_name("app.py").read_bytes()}


@pytest.fixture
def default_worker_command() -> Any:
    return CeleryWorkerContainer.command("--concurrency", str(PROCESSES))


@pytest.fixture
def default_worker_env(celery_worker_cluster_config: dict[str, Any]) -> Any:
    limit = {"SMOKE_LIMIT": f"{RATE}/s"}
    return CeleryWorkerContainer.initial_env(celery_worker_cluster_config, limit)


@pytest.fixture
def next_worker_env(default_worker_env: dict[str, str]) -> dict[str, str]:
    return default_worker_env | {"SMOKE_LIMIT": f"{NEXT_RATE}/s"}


@pytest.fixture
def celery_worker_cluster(
    celery_worker: CeleryTestWorker,
    second_worker_container: CeleryWorkerContainer,
    default_worker_cls: type[CeleryTestWorker],
    default_worker_app: Any,
) -> CeleryWorkerCluster:
    second = default_worker_cls(second_worker_container, default_worker_app)
    return CeleryWorkerCluster(celery_worker, second)


@pytest.fixture
def fleet(celery_setup: CeleryTestSetup) -> Fleet:
    return Fleet(celery_setup)
