"""An external API with a limit of its own, called from tasks and from a script.

The API here is a small HTTP server that answers 429 to the 11th request within a second. Run::

    celery -A examples.outbound_api worker --concurrency 4
    python -m examples.outbound_api
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.error import HTTPError
from urllib.request import urlopen

from celery import Celery, group

from celery_throttle import Throttle, wrap

REDIS = "redis://localhost:6379/0"

# CELERY_BROKER_URL, CELERY_RESULT_BACKEND and THROTTLE_URL in the environment name other servers.
app = Celery("examples.outbound_api", broker=REDIS, backend=REDIS)
# Requests arrive a few milliseconds earlier or later than they were admitted: leave a margin.
throttle = Throttle(app, {"partner": "9/s"})


def get(url: str) -> int:
    with urlopen(url, timeout=10) as response:  # noqa: S310  # a local server
        return int(response.status)


# If the API refuses a call all the same, all callers stop for as long as it asks, and the call is
# made again: a task waits in its line until then.
partner = wrap(throttle["partner"], get, retry_refused=3)
patient_partner = wrap(throttle["partner"], get, max_wait=30, retry_refused=3)


@app.task
def fetch(url: str) -> int:
    """If the limit refuses, the task leaves its process and runs again when the limit allows."""
    return partner(url)


class Partner(BaseHTTPRequestHandler):
    """Allows 10 requests in any second; the rest get 429."""

    recent: ClassVar[deque[float]] = deque()
    lock: ClassVar = threading.Lock()

    def do_GET(self) -> None:
        """Answer 200 or 429."""
        with self.lock:
            now = time.monotonic()
            while self.recent and self.recent[0] <= now - 1:
                self.recent.popleft()
            allowed = len(self.recent) < 10
            if allowed:
                self.recent.append(now)
        self.send_response(200 if allowed else 429)
        self.send_header("Retry-After", "1")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as in the base class
        """Log nothing."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Partner)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"

    unlimited = Counter(call_once(url) for _ in range(20))
    print(f"without a limit, from this script: {describe(unlimited)}")
    time.sleep(1)

    job = group(fetch.s(url) for _ in range(30)).apply_async()
    for _ in range(5):  # this script shares the limit with the tasks
        with suppress(HTTPError):
            patient_partner(url)
    print(f"with the limit, from tasks: {describe(Counter(job.get(timeout=60)))}")


def call_once(url: str) -> int:
    try:
        with urlopen(url, timeout=10) as response:  # noqa: S310  # a local server
            return int(response.status)
    except HTTPError as error:
        return error.code


def describe(answers: Counter[int]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in sorted(answers.items()))


if __name__ == "__main__":
    main()
