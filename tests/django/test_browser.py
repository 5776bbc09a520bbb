"""The page of limits in Django's admin, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_throttle import Limiter
from tests.django.conftest import PAGE
from tests.django.make_users import PASSWORD
from tests.web.browser import click, needs_browser, open_browser
from tests.web.test_browser import problems, text_of, wait_until
from tests.workers import StartWorker

pytestmark = needs_browser

#: Tasks for a minute at the rate of their limit.
TASKS = 1200


@pytest.mark.thorough
def test_a_login_leads_to_a_limit(origin: str, limiter: Limiter) -> None:
    with open_browser() as browser:
        _log_in(browser, origin, "viewer")
        browser.get_log("browser")  # the admin itself has no static files here
        _follow(browser, "Limits")
        _follow(browser, "stripe")
        wait_until(lambda: browser.current_url == f"{origin}{PAGE}limits/stripe")
        limiter["stripe"].pause(600, reason="incident 12")
        wait_until(lambda: "incident 12" in text_of(browser))
        limiter["stripe"].resume()
        assert problems(browser) == []
        _follow(browser, "Django administration")
        wait_until(lambda: browser.current_url == f"{origin}/shop/admin/")


@pytest.mark.workers
@pytest.mark.thorough
@pytest.mark.parametrize("origin", ["wsgi"], indirect=True)
def test_a_pause_stops_the_tasks(
    origin: str,
    shop_env: dict[str, str],
    redis_url: str,
    limiter: Limiter,
    start_worker: StartWorker,
) -> None:
    start_worker("shop", redis_url, env={**shop_env, "SHOP_BROKER_URL": redis_url})
    with open_browser() as browser, Celery(broker=redis_url, set_as_current=False) as app:
        _log_in(browser, origin, "changer")
        _follow(browser, "Limits")
        _follow(browser, "stripe")
        for number in range(TASKS):
            app.send_task("orders.tasks.charge", (number,))
        wait_until(lambda: _count_starts(limiter) > 0)
        _follow(browser, "Pause")
        wait_until(lambda: bool(browser.find_elements("id", "for")))
        browser.find_element("id", "for").send_keys("10m")
        browser.find_element("id", "reason").send_keys("incident <12>")
        click(browser, "css selector", "form.action button")
        click(browser, "css selector", "form.action[method='post'] button")
        wait_until(lambda: "by changer (web): incident <12>" in text_of(browser))
        before = _count_starts(limiter)
        _follow(browser, "History")
        wait_until(lambda: "changer (web)\nincident <12>" in text_of(browser))
        assert _count_starts(limiter) == before < TASKS
        limiter["stripe"].resume()
        wait_until(lambda: _count_starts(limiter) > before)


def _log_in(browser: Any, origin: str, name: str) -> None:
    browser.get(f"{origin}/shop/admin/")
    browser.find_element("id", "id_username").send_keys(name)
    browser.find_element("id", "id_password").send_keys(PASSWORD)
    browser.find_element("id", "login-form").submit()


def _follow(browser: Any, link: str) -> None:
    click(browser, "link text", link)


def _count_starts(limiter: Limiter) -> float:
    return limiter["stripe"].status().totals.granted
