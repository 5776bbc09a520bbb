"""Feedback from the answers of an API."""

from __future__ import annotations

import math

import pytest

from celery_throttle import LimitValueError
from celery_throttle.limits.feedback import Feedback


@pytest.mark.parametrize("stop", [-1.0, 1e30, math.inf, math.nan])
def test_a_stop_that_no_pause_can_have_is_an_error(stop: float) -> None:
    with pytest.raises(LimitValueError, match=r"a stop of .* is not allowed; allowed: seconds"):
        Feedback(refused=True, stop=stop)
