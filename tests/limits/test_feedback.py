"""Feedback from the answers of an API."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, cast

import pytest

from celery_throttle import Limiter, LimitValueError
from celery_throttle.limits.feedback import Feedback


@pytest.mark.parametrize("stop", [-1.0, 1e30, math.inf, math.nan])
def test_a_stop_that_no_pause_can_have_is_an_error(stop: float) -> None:
    with pytest.raises(LimitValueError, match=r"a stop of .* is not allowed; allowed: seconds"):
        Feedback(refused=True, stop=stop)


@pytest.mark.parametrize("stop", [2, "2s", timedelta(seconds=2)])
def test_a_stop_is_a_duration(stop: Any) -> None:
    limiter = Limiter("memory://", {"api": "10/s"})
    assert limiter["api"].learn(Feedback(refused=True, stop=stop)) == 2


@pytest.mark.parametrize("name", ["left", "limit", "period", "took"])
@pytest.mark.parametrize("number", [-1, -0.1, math.inf, math.nan, "1", True])
def test_a_number_that_no_answer_can_have_is_an_error(name: str, number: object) -> None:
    with pytest.raises(LimitValueError, match=rf"{name} .* is not allowed; allowed: 0 or more"):
        Feedback(**cast("dict[str, Any]", {name: number}))
