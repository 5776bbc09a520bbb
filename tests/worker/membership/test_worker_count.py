"""The number of workers that a worker assumes before the server has reported it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.settings import Settings
from celery_throttle.worker.membership.worker_count import WorkerCount


def test_the_number_outlives_the_worker(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    size = WorkerCount(state, None)
    assert (size.known, size.is_reported) == (None, False)
    size.update(3)
    assert (size.known, size.is_reported) == (3, True)
    again = WorkerCount(state, None)
    assert (again.known, again.is_reported) == (3, False)
    assert os.listdir(tmp_path) == ["state.throttle"]  # noqa: PTH208 -- and no temporary file


def test_each_shard_has_a_file_of_its_own(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    WorkerCount(state, None).update(3)
    WorkerCount(state, None, "erp").update(2)
    assert (WorkerCount(state, None).known, WorkerCount(state, None, "erp").known) == (3, 2)
    assert sorted(os.listdir(tmp_path)) == ["state.throttle", "state.throttle.erp"]  # noqa: PTH208 -- see above


def test_it_is_written_when_it_changes(tmp_path: Path) -> None:
    size, file = WorkerCount(str(tmp_path / "state"), None), tmp_path / "state.throttle"
    size.update(3)
    file.unlink()
    size.update(3)
    assert not file.exists()
    size.update(2)
    assert file.read_text() == "2\n"


@pytest.mark.parametrize(
    "damage", [b"", b"x", b"-3", b"0", b"1.5", b"9" * 1000, b"\xff\x00", b"2000000"]
)
def test_a_damaged_file_says_nothing_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "state.throttle").write_bytes(damage)
    size = WorkerCount(str(tmp_path / "state"), None)
    assert size.known is None
    size.update(4)
    assert WorkerCount(str(tmp_path / "state"), None).known == 4


def test_the_greater_of_the_stored_and_the_configured_number_counts(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    WorkerCount(state, None).update(3)
    assert WorkerCount(state, 5).known == 5
    assert WorkerCount(state, 2).known == 3
    assert WorkerCount(None, 2).known == 2
    size = WorkerCount(state, 5)
    size.update(1)
    assert size.known == 1


def test_a_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = WorkerCount(str(tmp_path / "nowhere" / "state"), None)
    for _ in range(3):
        size.update(3)
    assert size.known == 3
    assert caplog.text.count("Cannot store the number of workers") == 1


def conf(**settings: object) -> Any:
    """The settings of a Celery app."""
    app = Celery(set_as_current=False)
    app.conf.update(settings)
    return app.conf


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("throttle_outage_workers", 0),
        ("throttle_outage_workers", 1.5),
        ("throttle_outage_workers", True),
        ("throttle_outage_workers", "3"),
        ("throttle_outage_grace", -1),
        ("throttle_outage_grace", 3601),
        ("throttle_outage_grace", "30 s"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(setting: str, value: object) -> None:
    settings = Settings(conf(**{setting: value}), {})
    with pytest.raises(ConfigurationError, match=f"{setting} is .*: it must be"):
        raise next(settings.mistakes())


def test_the_settings_and_their_defaults() -> None:
    settings = Settings(conf(), {})
    assert (settings.outage_workers, settings.outage_grace) == (None, 30.0)
    settings = Settings(
        conf(throttle_outage_workers=4, throttle_outage_grace=0), {"outage_workers": 5}
    )
    assert (settings.outage_workers, settings.outage_grace) == (5, 0.0)
