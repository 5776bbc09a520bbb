"""Takes the pictures of the web page in docs/, of real workers: `make screenshots`.

The charts show 15 minutes, so it takes 15 minutes; for a draft: --minutes 1.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery_throttle.web.security import ACTIONS
from celery_throttle.web.server import make_server, port_of
from tests.servers.server import Server, valkey_command
from tests.web.browser import open_browser
from tests.web.shop import make_app
from tests.workers import Worker

DOCS = Path(__file__).parents[2] / "docs" / "pictures"

#: Pages of the documentation: name, path, width and height of the window.
PICTURES = {
    "web-limits": ("/", 1280, 620),
    "web-limit": ("/limits/stripe", 1280, 880),
    "web-phone": ("/limits/mail", 390, 844),
}

#: The other pages, for a look at all of them.
OTHERS = {
    "phone-limits": ("/", 390, 1400),
    "mail": ("/limits/mail", 1280, 1200),
    "exports": ("/limits/exports", 1280, 1000),
    "key": ("/limits/mail?key=tenant-1", 1280, 900),
    "keys": ("/limits/mail/keys", 1280, 600),
    "waiting": ("/limits/mail/waiting", 1280, 600),
    "phone-waiting": ("/limits/mail/waiting", 390, 844),
    "report": ("/limits/stripe/report?hours=0.25", 1280, 900),
    "task": ("/task?id=reminder-3999", 1280, 600),
    "phone-task": ("/task?id=reminder-3999", 390, 844),
    "fan-outs": ("/fan-outs", 1280, 500),
    "phone-fan-outs": ("/fan-outs", 390, 844),
    "workers": ("/workers", 1280, 600),
    "history": ("/history", 1280, 500),
    "pause": ("/limits/mail/pause", 1280, 600),
    "pause-preview": ("/limits/mail/pause?for=10m&preview=1", 1280, 600),
    "phone-pause-preview": ("/limits/mail/pause?for=10m&preview=1", 390, 844),
    "define": ("/limits/mail/define", 1280, 700),
    "define-mistake": ("/limits/mail/define?limits=50&preview=1", 1280, 700),
    "phone-define": ("/limits/mail/define", 390, 844),
    "drop": ("/limits/mail/drop", 1280, 600),
    "cancel": ("/fan-outs/cancel?name=reminders-2026-11-23", 1280, 600),
    "unknown": ("/limits/none", 1280, 400),
    "empty": ("/?search=zzz", 1280, 400),
}


@contextmanager
def _shop(minutes: float) -> Iterator[str]:
    """Run two workers, send tasks for some minutes, and serve the page; yields its URL."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(valkey_command(), Path(directory))
        app: Any = make_app(server.url)
        page = make_server(app.throttle, "127.0.0.1", 0, "", ACTIONS)
        try:
            with _worker(server.url, 1), _worker(server.url, 2):
                _operate(app)
                _send(app, minutes * 60)
                threading.Thread(target=page.run, daemon=True).start()
                yield f"http://127.0.0.1:{port_of(page)}"
        finally:
            page.close()
            server.stop()


def _worker(url: str, number: int) -> Worker:
    hostname = f"shop-{number}@web-{number}"
    return Worker("tests.web.shop", url, pool="threads", concurrency=8, hostname=hostname)


def _operate(app: Any) -> None:
    throttle = app.throttle
    throttle["sms"].pause(5400, reason="the provider is down", by="ann@ops")
    throttle["tokens"].define("20000/day using fixed-window", reason="quota cut", by="bob@ops")
    throttle["search"].define("15/s burst 15", lasts=7200, reason="incident 12", by="ann@ops")
    send = app.tasks["shop.remind"].s
    reminders = (
        send(f"tenant-{min(9, int(random.expovariate(0.5)) + 1)}", n).set(task_id=f"reminder-{n}")
        for n in range(4000)
    )
    throttle.fan_out(reminders, "reminders-2026-11-23")


def _send(app: Any, seconds: float) -> None:
    """Send more tasks a second than the limits allow, and fewer, by turns."""
    begin = now = time.monotonic()
    is_raised, orders = False, itertools.count()
    for n in range(3):
        app.tasks["shop.notify"].delay(n)
    while now - begin < seconds:
        if not is_raised and now - begin > seconds / 2:
            is_raised = True
            app.throttle["stripe"].define(
                "5/s burst 8", reason="our quota was raised", by="ann@ops"
            )
        rate = 4 + 3.2 * math.sin((now - begin) / 75)
        for _ in range(int(rate) + (random.random() < rate % 1)):
            app.tasks["shop.charge"].delay(next(orders))
        if random.random() < 0.12:
            app.tasks["shop.export"].delay(1)
        app.throttle["search"].try_acquire(random.randint(1, 15))
        app.throttle["tokens"].try_acquire(random.randint(1, 20))
        time.sleep(max(0.0, now + 1 - time.monotonic()))
        now = time.monotonic()


def _take(url: str, folder: Path, pictures: dict[str, tuple[str, int, int]], *, dark: bool) -> None:
    options = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    with open_browser("--hide-scrollbars", *options) as browser:
        for name, (path, width, height) in pictures.items():
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
            browser.get(f"{url}{path}")
            browser.save_screenshot(str(folder / f"{name}{'-dark' if dark else ''}.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--folder", type=Path, default=DOCS)
    parser.add_argument("--all", action="store_true", help="take all pages, also in the dark")
    given = parser.parse_args()
    with _shop(given.minutes) as url:
        _take(url, given.folder, PICTURES, dark=False)
        if given.all:
            _take(url, given.folder, OTHERS, dark=False)
            _take(url, given.folder, {**PICTURES, **OTHERS}, dark=True)


if __name__ == "__main__":
    main()
