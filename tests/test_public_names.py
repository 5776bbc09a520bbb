"""The public names of the package: each is imported when it is used, and no sooner."""

from __future__ import annotations

import subprocess
import sys

import pytest

import celery_throttle


def test_each_name_is_there() -> None:
    assert set(celery_throttle._MODULES) == set(celery_throttle.__all__)
    for name in celery_throttle.__all__:
        assert getattr(celery_throttle, name).__module__.startswith("celery_throttle") or name in (
            *("task_admitted", "task_released", "task_throttled", "throttle_mode_changed"),
        )


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Throtle'"):
        celery_throttle.Throtle  # noqa: B018  # the test


def test_a_limiter_does_not_import_celery() -> None:
    code = (
        "import sys; from celery_throttle import Limiter; Limiter('redis://nowhere.invalid'); "
        "assert not {'celery', 'kombu'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
