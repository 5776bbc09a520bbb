"""Prometheus and promtool, as Debian's package `prometheus` installs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.server import free_port
from tests.tether import Tethered


def find_command(name: str) -> str:
    """Return the path of a command; without it, skip the test, or fail if PROMETHEUS=required."""
    found = shutil.which(name)
    if found is None:
        missing = f"{name} is not installed; Debian's package prometheus has it"
        if os.environ.get("PROMETHEUS") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def promtool(*arguments: str | Path) -> None:
    """Run promtool; fail with its output if it finds a mistake."""
    command = [find_command("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A server that scrapes as its configuration says.

    Args:
        config: the contents of its configuration file.
        directory: all its files are there.
    """

    def __init__(self, config: dict[str, Any], directory: Path) -> None:
        path = directory / "prometheus.yml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        address = f"127.0.0.1:{free_port()}"
        self._url = f"http://{address}"
        command = [
            find_command("prometheus"),
            f"--config.file={path}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ]
        self._running = Tethered(command, directory / "prometheus.log")
        self._running.wait_until(self._is_ready, seconds=100)

    def query(self, expression: str) -> list[float]:
        """Return the values of an instant vector now, without their labels."""
        with self._get("/api/v1/query", query=expression) as reply:
            data = json.load(reply)["data"]
        assert data["resultType"] == "vector", data
        return [float(sample["value"][1]) for sample in data["result"]]

    def close(self) -> None:
        self._running.end()

    def _is_ready(self) -> bool:
        try:
            with self._get("/-/ready") as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        return urllib.request.urlopen(url, timeout=10)  # noqa: S310  # our own server
