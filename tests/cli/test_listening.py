"""The addresses of pages that commands serve; `test_metrics.py` and `test_web.py` have the rest."""

from __future__ import annotations

from celery_throttle.cli.serve.listening import http_url


def test_the_address_of_a_page() -> None:
    assert http_url("127.0.0.1", 9808, "/metrics") == "http://127.0.0.1:9808/metrics"
    assert http_url("::1", 5556, "/") == "http://[::1]:5556/"
