"""The page in a real browser: Debian's Chromium."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_throttle.observe.text import format_seconds
from celery_throttle.web.security import ACTIONS
from celery_throttle.web.server import make_server, port_of
from tests.cli.conftest import fill
from tests.web.browser import needs_browser, open_browser
from tests.web.conftest import Site

pytestmark = [needs_browser, pytest.mark.thorough]


@pytest.fixture
def url(site: Site) -> Iterator[str]:
    """The page, served by this process."""
    server = make_server(site.app.throttle, "127.0.0.1", 0, "")
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{port_of(server)}"
    server.close()
    thread.join()


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.1)


def text_of(browser: Any, selector: str = "#live") -> str:
    text: str = browser.execute_script(
        "return document.querySelector(arguments[0])?.innerText ?? ''", selector
    )
    return text


def problems(browser: Any) -> list[Any]:
    """Return what the browser complains of, such as what the policy forbids."""
    return [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"]


def test_the_page_follows_the_limits(site: Site, url: str) -> None:
    fill(site.app, 5)
    with open_browser() as browser:
        browser.get(f"{url}/?search=a")
        browser.execute_script(
            "window.isSame = true; document.getElementById('search').value = 'typed';"
            "document.getElementById('search').focus()"
        )
        assert "Paused" not in text_of(browser)
        site.app.throttle["mail"].pause(600, reason="incident 12")
        wait_until(lambda: "incident 12" in text_of(browser))
        # Counts down, without another change of the page.
        rest = text_of(browser, ".rest")
        wait_until(lambda: text_of(browser, ".rest") not in ("", rest))
        site.app.throttle["mail"].resume()
        wait_until(lambda: "Paused" not in text_of(browser))
        assert browser.execute_script("return window.isSame")
        assert (
            browser.execute_script(
                "return document.activeElement.id + document.activeElement.value"
            )
            == "searchtyped"
        )
        assert problems(browser) == []


@pytest.mark.thorough
@pytest.mark.parametrize("width", [390, 1280])
def test_all_pages_obey_the_policy_and_fit(site: Site, acting_url: str, width: int) -> None:
    fill(site.app, 5, name="n" * 100)
    site.app.throttle["mail"].pause(600, reason="x" * 200, by="y" * 200)
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    with open_browser() as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for path in (
            "/",
            "/limits/mail",
            "/limits/mail/keys",
            "/limits/mail/waiting",
            "/limits/mail/report",
            "/limits/mail/define",
            "/limits/mail/drop",
            "/task?id=id1",
            "/fan-outs",
            "/workers",
            "/history",
        ):
            browser.get(f"{acting_url}{path}")
            wait_until(lambda: browser.execute_script("return Boolean(window.htmx)"))
            assert browser.execute_script(
                "return document.documentElement.scrollWidth <= arguments[0]", width
            ), path
        assert problems(browser) == []


#: The heights of elements, in lines of the text of the page.
_LINES = """
const line = parseFloat(getComputedStyle(document.body).lineHeight);
const found = [...document.querySelectorAll(arguments[0])];
return found.map((element) => element.getBoundingClientRect().height / line);
"""


def test_rows_on_a_phone(site: Site, url: str) -> None:
    fill(site.app, 50, tenants=3)
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    with open_browser() as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(f"{url}/limits/mail/waiting")
        rows = browser.execute_script(_LINES, ".brief tbody tr")
        assert len(rows) == 50
        assert max(rows) < 3  # two lines, and the space around them
        site.app.throttle["mail"].pause(600, reason="x" * 200)
        for width in (390, 1280):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, "width": width})
            browser.get(f"{url}/history")
            assert max(browser.execute_script(_LINES, "tbody th time")) < 1.5


_COUNT = """
window.polls = window.requests = 0;
document.addEventListener("htmx:before:request", () => window.polls++);
const send = window.fetch;
window.fetch = (...all) => (window.requests++, send(...all));
"""


@pytest.mark.thorough
def test_updates_stop_and_a_lost_page_is_reported(url: str) -> None:
    with open_browser() as browser:
        browser.get(url)
        browser.execute_script("document.getElementById('updates').click()")
        browser.execute_script(_COUNT)
        wait_until(lambda: browser.execute_script("return window.polls") > 0)
        assert browser.execute_script("return window.requests") == 0
        browser.execute_script(
            "window.fetch = () => Promise.reject(new TypeError('lost'));"
            "document.getElementById('updates').click()"
        )
        wait_until(lambda: "No answer since" in text_of(browser, "#problem"))


@pytest.mark.thorough
def test_a_server_that_was_lost_comes_back(
    site: Site, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_throttle import StoreUnavailableError  # noqa: PLC0415  # for this test

    def fail(*_: object) -> None:
        raise StoreUnavailableError("the server cannot be reached")

    with open_browser() as browser:
        browser.get(url)
        with monkeypatch.context() as lost:
            lost.setattr(type(site.app.throttle), "run_plan", fail)
            wait_until(lambda: "The limits cannot be read" in text_of(browser))
        wait_until(lambda: "mail" in text_of(browser))


def test_the_page_without_scripts(site: Site, url: str) -> None:
    fill(site.app, 5)
    with open_browser(script=False) as browser:
        browser.get(url)
        body = browser.find_element("css selector", "body")
        assert "since 20" in body.text
        assert "Update every" not in body.text
        search = browser.find_element("css selector", "#search")
        search.send_keys("mai")
        search.submit()
        wait_until(lambda: "search=mai" in browser.current_url)
        browser.find_element("link text", "mail").click()
        wait_until(lambda: "/limits/mail" in browser.current_url)


#: Shows a duration in the first time of the page, and stops the clock.
_SHOW_AGE = """
document.getElementById("updates").checked = false;
const element = document.querySelector("[data-show]");
element.dataset.show = "age";
element.dateTime = new Date(1e12 - arguments[0] * 1e3).toISOString();
Date.now = () => 1e12;
document.dispatchEvent(new Event("htmx:after:swap"));
return element.textContent;
"""


@pytest.fixture
def acting_url(site: Site) -> Iterator[str]:
    """The page with all actions, served by this process."""
    server = make_server(site.app.throttle, "127.0.0.1", 0, "", ACTIONS)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{port_of(server)}"
    server.close()
    thread.join()


#: Keys, as WebDriver names them.
BACKSPACE, TAB, ENTER = "\ue003", "\ue004", "\ue007"
SELECT_ALL = ("\ue009", "a", "\ue000")  # Ctrl-A, and Ctrl is released


class Keyboard:
    """A browser without a mouse."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def press(self, *keys: str) -> None:
        self.browser.switch_to.active_element.send_keys(*keys)

    def go_to(self, text: str) -> None:
        """Press Tab until the element that has the focus has this label or text."""
        for _ in range(80):
            self.press(TAB)
            if self.browser.execute_script(_FOCUS) == text:
                return
        raise AssertionError(f"Tab never leads to {text!r} on {self.browser.current_url}")

    def follow(self, text: str, then: str) -> None:
        """Press Enter on a link or button, and wait for a part of the next page."""
        self.go_to(text)
        self.press(ENTER)
        wait_until(lambda: then in text_of(self.browser, ".page"))


_FOCUS = """
const element = document.activeElement;
return (element.labels && element.labels.length ? element.labels[0] : element).innerText.trim();
"""


def test_actions_with_the_keyboard(site: Site, acting_url: str) -> None:
    fill(site.app, 5)
    mail = site.app.throttle["mail"]
    with open_browser() as browser:
        keyboard = Keyboard(browser)
        browser.get(f"{acting_url}/limits/mail")
        keyboard.follow("Pause", "A duration, such as")
        keyboard.go_to("Duration")
        keyboard.press("soon", ENTER)
        wait_until(lambda: "'soon' is no duration" in text_of(browser))
        keyboard.go_to("Duration")
        keyboard.press(*[BACKSPACE] * 4, "10m")
        keyboard.go_to("Reason")
        keyboard.press("incident <12>", ENTER)
        wait_until(lambda: "5 tasks wait; the last would start" in text_of(browser))
        keyboard.follow("Pause limit mail", "Done: mail: paused for 10 min, by web: incident <12>")
        assert mail.status().pauses
        keyboard.follow("Define", "One limit in each line")
        keyboard.go_to("Limit")
        keyboard.press(*SELECT_ALL, "600/m", ENTER, "5000/h")
        keyboard.go_to("Duration")
        keyboard.press("1h")
        keyboard.follow("Preview", "5 tasks wait; the last would start")
        keyboard.follow(
            "Define limit mail", "Done: mail: 600/m; 5000/h for 1 h instead of 20/m by web"
        )
        assert mail.status().clauses == ("600/m", "5000/h")
        keyboard.follow("Resume", "5 tasks wait; the last would start")
        keyboard.follow("Resume limit mail", "Done: mail: resumed")
        assert not mail.status().pauses
        keyboard.follow("More", "Drop")
        keyboard.follow("Drop", "They are discarded for good")
        keyboard.follow(
            "Drop the waiting tasks of limit mail", "Done: mail: dropped 5 tasks by web"
        )
        assert site.app.throttle["mail"].count_waiting().waiting == 0
        # The mistake in the first form was an answer 400.
        assert [entry["source"] for entry in problems(browser)] == ["network"]
        width, window = browser.execute_script(
            "return [document.documentElement.scrollWidth, innerWidth]"
        )
        assert width <= window


@pytest.mark.thorough
def test_actions_without_scripts(site: Site, acting_url: str) -> None:
    with open_browser(script=False) as browser:
        browser.get(f"{acting_url}/limits/mail/reset")
        browser.find_element("css selector", "form.action button").click()
        wait_until(lambda: "done=" in browser.current_url)
        assert site.app.throttle.changes()[0].action == "reset"


@pytest.mark.thorough
def test_durations_read_as_in_the_commands(site: Site, url: str) -> None:
    site.app.throttle["mail"].pause(600)
    with open_browser() as browser:
        browser.get(url)
        for seconds in (10, 59, 60, 61, 3_600, 3_601, 7_260, 86_399, 86_400, 90_000, 100_000_000):
            assert browser.execute_script(_SHOW_AGE, seconds) == format_seconds(seconds)
