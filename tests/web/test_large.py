"""100,000 keys with waiting tasks: each page within half a second."""

from __future__ import annotations

import time

import pytest

from tests.cli.conftest import fill
from tests.web.conftest import Site

PAGE_SECONDS = 0.5


@pytest.mark.thorough
def test_a_hundred_thousand_keys(site: Site) -> None:
    fill(site.app, 100_000, tenants=100_000)
    for path in (
        "/",
        "/?sort=waiting",
        "/limits/mail",
        "/limits/api",
        "/limits/mail?key=t5",
        "/limits/mail/keys?page=500",
        "/limits/mail/waiting?page=500",
        "/limits/mail/report",
        "/task?id=id500",
        "/fan-outs",
        "/workers",
    ):
        # Other processes may delay some of them, but not all.
        assert any(_seconds(site, path) < PAGE_SECONDS for _ in range(10)), path


def _seconds(site: Site, path: str) -> float:
    began = time.monotonic()
    site.html(path)
    return time.monotonic() - began
