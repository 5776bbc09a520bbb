"""The system checks of examples/django_shop, with other settings and without packages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.django.conftest import env_of
from tests.programs import run_python

pytestmark = pytest.mark.thorough

Check = Callable[..., list[tuple[str, str, str | None]]]

_CHECK = """
import json, os, socket, sys
import django
from django.core.checks import run_checks
{before}
socket.socket.connect = socket.socket.connect_ex = None  # a check calls no server
django.setup()
print(json.dumps([(found.id, found.msg, found.hint) for found in run_checks()]))
{after}
"""

#: A project that imports no Celery app when it starts.
_BARE = "SECRET_KEY = 'x'\nINSTALLED_APPS = ['celery_throttle.django']"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Returns the id, message and hint of each check that fails; the server is not there.

    `settings`: lines below those of the shop, or all of them; `before`, `after`: lines of code.
    """

    def check(
        settings: str = "", *, before: str = "", after: str = "", is_shop: bool = True
    ) -> list[tuple[str, str, str | None]]:
        shop = "from shop.settings import *\n" if is_shop else ""
        (tmp_path / "changed_settings.py").write_text(shop + settings, encoding="utf-8")
        env = env_of("redis://127.0.0.1:1/0", tmp_path, "changed_settings")
        printed = run_python("-c", _CHECK.format(before=before, after=after), env=env)
        return [(name, text, hint) for name, text, hint in json.loads(printed)]

    return check


def test_each_mistake_is_an_error(check: Check) -> None:
    found = check(
        "CELERY_THROTTLE_LIMITS = {'stripe': '20/eon', 'post': '2/s'}\n"
        "CELERY_THROTTLE_LEAS = 30\n"
        "CELERY_TROTTLE_OUTAGE_WORKERS = 3"
    )
    assert [name for name, _, _ in found] == ["celery_throttle.E002"] * 3 + ["celery_throttle.W001"]
    lease, stripe, mail, workers = (text for _, text, _ in found)
    assert "write 'CELERY_THROTTLE_LEASE'" in lease
    assert "'20/eon'" in stripe
    assert "task 'orders.tasks.send_receipt': limit 'mail' is not defined" in mail
    assert "write 'CELERY_THROTTLE_OUTAGE_WORKERS'" in workers
    assert {hint for _, _, hint in found[:3]} == {
        "Workers do not start before this mistake is corrected."
    }


@pytest.mark.parametrize("name", ["shop", "shop.celery", "shop.celery:app"])
def test_the_setting_names_the_app(check: Check, name: str) -> None:
    settings = f"{_BARE}\nTHROTTLE_APP = {name!r}\n"
    assert check(settings + "CELERY_THROTTLE_URL = 'redis://x'", is_shop=False) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("", "No Celery app is imported when Django starts"),
        ("THROTTLE_APP = 'shop.nothing:app'", "No module named 'shop.nothing'"),
        ("THROTTLE_APP = 'shop.settings:DEBUG'", "is no Celery app"),
        ("THROTTLE_APP = 3", "THROTTLE_APP = 3 is no Celery app"),
        ("import celery\nplain = celery.Celery('plain')", "'plain' has no limits; add Throttle"),
    ],
)
def test_a_project_without_limits(check: Check, settings: str, text: str) -> None:
    ((name, found, _),) = check(f"{_BARE}\n{settings}", is_shop=False)
    assert (name, text in found) == ("celery_throttle.E001", True), found


def test_without_the_extra_the_admin_has_no_page(check: Check) -> None:
    ((name, text, hint),) = check(before="sys.modules['flask'] = None")
    assert (name, "Flask is not installed" in text) == ("celery_throttle.W002", True)
    assert hint == 'pip install "celery-global-throttle[django]"'


def test_tasks_that_cannot_be_imported(check: Check) -> None:
    """The other checks go on, and a host without the packages of its workers may silence it."""
    settings = "CELERY_IMPORTS = ['no_module']\nCELERY_THROTTLE_LIMITS = {'stripe': '20/eon'}\n"
    (first, text, hint), *others = check(settings)
    assert (first, hint) == ("celery_throttle.E004", "Workers do not start with this error.")
    assert "ModuleNotFoundError: No module named 'no_module'" in text
    assert {name for name, _, _ in others} == {"celery_throttle.E002"}


@pytest.mark.parametrize(
    ("actions", "text"),
    [(["paws"], "'paws' is unknown"), (True, "True"), ([["pause"]], "[['pause']]")],
)
def test_unknown_actions(check: Check, actions: Any, text: str) -> None:
    ((name, found, _),) = check(f"THROTTLE_WEB_ACTIONS = {actions}")
    assert name == "celery_throttle.E003"
    assert found.startswith("THROTTLE_WEB_ACTIONS")
    assert text in found
    assert "allowed: a list of" in found


def test_known_actions(check: Check) -> None:
    assert check("THROTTLE_WEB_ACTIONS = ['pause', 'resume']") == []
    assert check("THROTTLE_WEB_ACTIONS = None") == []


def test_django_reports_the_errors_of_the_page(check: Check) -> None:
    """Not Flask: Django may mail them, or show them if DEBUG is set."""
    after = (
        "from django.contrib import admin\n"
        "from django.contrib.auth.models import User\n"
        "from django.core.exceptions import ImproperlyConfigured\n"
        "from django.test import RequestFactory\n"
        "from celery_throttle.django.models import Limit\n"
        "request = RequestFactory().get('/', headers={'host': 'localhost'})\n"
        "request.user = User(username='ann', is_superuser=True)\n"
        "try:\n"
        "    admin.site.get_model_admin(Limit).show_page(request, '')\n"
        "except ImproperlyConfigured as error:\n"
        "    assert 'paws' in str(error)\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    assert len(check("THROTTLE_WEB_ACTIONS = ['paws']", after=after)) == 1


def test_a_project_without_the_admin_needs_no_extra(check: Check) -> None:
    settings = f"{_BARE}\nTHROTTLE_APP = 'shop'\nCELERY_THROTTLE_URL = 'redis://x'"
    assert check(settings, before="sys.modules['flask'] = None", is_shop=False) == []


def test_workers_import_the_tasks_as_before(check: Check) -> None:
    """Celery runs all system checks when a worker imports the tasks."""
    after = (
        "from shop.celery import app\n"
        "assert 'orders.tasks.charge' in app.tasks\n"
        "app.loader.import_default_modules()\n"
        "assert 'CELERY_SKIP_CHECKS' not in os.environ\n"
    )
    assert check(after=after) == []


def test_migrations(tmp_path: Path) -> None:
    """The app needs none: its model has no table."""
    env = env_of("redis://127.0.0.1:1/0", tmp_path)
    run_python("-m", "django", "makemigrations", "--check", env=env)


@pytest.mark.parametrize("options", [(), ("--all",)], ids=["default manager", "base manager"])
def test_dumpdata_reads_no_table(tmp_path: Path, options: tuple[str, ...]) -> None:
    env = env_of("redis://127.0.0.1:1/0", tmp_path)
    run_python("-m", "django", "migrate", "--run-syncdb", "--verbosity=0", env=env)
    dumped = run_python("-m", "django", "dumpdata", *options, env=env)
    assert "celery_throttle.limit" not in {one["model"] for one in json.loads(dumped)}
