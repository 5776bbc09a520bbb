"""The example of a web app runs as its first lines say."""

from __future__ import annotations

import re

import pytest

from tests.programs import run_python


@pytest.mark.parametrize("own", [False, True])
def test_inbound_web(redis_url: str, own: bool) -> None:  # noqa: FBT001  # a parameter
    env = {"THROTTLE_URL": "" if own else redis_url}
    output = run_python("-m", "examples.inbound_web", env=env)
    statuses = re.findall(r"^([a-z0-9-]+): (\d+)", output, re.MULTILINE)
    assert statuses == [
        *[("ann", "200")] * 3,
        ("ann", "429"),
        ("bob", "200"),
        ("random-1", "200"),
        ("random-2", "200"),
    ]
    left = re.findall(r'"api";r=(\d+)', output)
    assert left == ["2", "1", "0", "0", "2", "2", "1"]  # who has no key shares one
