"""Chromium or Chrome, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.server import wait_until

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), "chromedriver"


def has_browser() -> bool:
    return BROWSER is not None and shutil.which(DRIVER) is not None


needs_browser = pytest.mark.skipif(not has_browser(), reason="no chromium and chromedriver")


@contextmanager
def open_browser(*options: str, script: bool = True) -> Iterator[Any]:
    """A driver of a new browser. `script`: whether pages may run scripts."""
    from selenium import webdriver  # noqa: PLC0415  # only with a browser

    about = webdriver.ChromeOptions()
    about.binary_location = BROWSER or ""
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", *options):
        about.add_argument(option)
    about.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not script:
        about.add_experimental_option(
            "prefs", {"profile.managed_default_content_settings.javascript": 2}
        )
    service = webdriver.ChromeService(executable_path=shutil.which(DRIVER))
    driver = webdriver.Chrome(options=about, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def click(browser: Any, by: str, value: str) -> None:
    """Click on an element, as soon as it is there.

    A page updates itself, so what was found may be replaced, or moved, before the click.
    """
    from selenium.common import exceptions  # noqa: PLC0415  # only with a browser

    not_yet = (
        exceptions.NoSuchElementException,
        exceptions.StaleElementReferenceException,
        exceptions.ElementClickInterceptedException,
    )

    def clicks() -> bool:
        try:
            browser.find_element(by, value).click()
        except not_yet:
            return False
        return True

    wait_until(clicks, f"a click on {value}", 60)
