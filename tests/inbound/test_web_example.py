"""The example of a web app runs as its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.workers import ROOT


@pytest.mark.parametrize("own", [False, True])
def test_inbound_web(redis_url: str, own: bool) -> None:  # noqa: FBT001  # a parameter
    done = subprocess.run(
        [sys.executable, "-m", "examples.inbound_web"],
        env=os.environ | {"THROTTLE_URL": "" if own else redis_url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    statuses = re.findall(r"^([a-z0-9-]+): (\d+)", done.stdout, re.MULTILINE)
    assert statuses == [
        *[("ann", "200")] * 3,
        ("ann", "429"),
        ("bob", "200"),
        ("random-1", "200"),
        ("random-2", "200"),
    ]
    left = re.findall(r'"api";r=(\d+)', done.stdout)
    assert left == ["2", "1", "0", "0", "2", "2", "1"]  # who has no key shares one
