"""The commands in both entries, in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_throttle.cli import main, throttle
from tests.apps.operated import make_app

ENTRIES = ("celery", "celery-throttle")


@dataclass(frozen=True)
class Shell:
    """Runs commands: of ``celery -A operated throttle``, or of ``celery-throttle --url``."""

    app: Any
    entry: str

    def run(self, *words: str, code: int = 0, typed: str | None = None) -> str:
        """Return standard output; the exit code must be as given, and errors must be no traceback.

        With an error, return standard error. ``typed``: what the user types.
        """
        result = self._invoke(*words, typed=typed)
        assert result.exit_code == code, result.output
        return result.stderr if code and result.stderr else result.stdout

    def errors(self, *words: str) -> str:
        """Run a command that succeeds, and return standard error."""
        result = self._invoke(*words)
        assert result.exit_code == 0, result.output
        return result.stderr

    def _invoke(self, *words: str, typed: str | None = None) -> Result:
        if self.entry == "celery":
            context = CLIContext(app=self.app, no_color=True, workdir=None)
            result = CliRunner().invoke(throttle, words, obj=context, input=typed)
        else:
            words = ("--url", self.app.throttle.settings.url, *words)
            result = CliRunner().invoke(main, words, input=typed)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def code(self, *words: str) -> int:
        return self._invoke(*words).exit_code

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))


@pytest.fixture
def app(redis_url: str) -> Iterator[Any]:
    app: Any = make_app(redis_url)
    app.throttle.register()  # as a worker does at its start
    yield app
    app.throttle.store.close()
    app.close()


@pytest.fixture(params=ENTRIES)
def shell(request: pytest.FixtureRequest, app: Any) -> Shell:
    """In the entries with and without an app."""
    return Shell(app, request.param)


@pytest.fixture
def app_shell(app: Any) -> Shell:
    return Shell(app, "celery")


def fill(app: Any, tasks: int, tenants: int = 1, name: str = "nightly") -> None:
    """Let tasks ``id0``, ``id1`` and so on wait in lines of tenants ``t0``, ``t1`` and so on."""
    send = app.tasks["send"]
    signatures = (send.s(f"t{n % tenants}", n).set(task_id=f"id{n}") for n in range(tasks))
    app.throttle.fan_out(signatures, name)
