import pytest
from celery.contrib.testing.worker import start_worker
from django.core.management import call_command

from orders.models import Order
from shop.celery import app


def test_limits_and_tasks_have_no_mistake():
    call_command("check", tags=["celery"])


@pytest.mark.django_db
def test_an_order_is_charged(client, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        assert client.post("/orders/acme/").status_code == 202
    assert Order.objects.get().charged_at


@pytest.mark.throttle_off
def test_the_balance_without_limits(client):
    assert all(client.get("/balance/").status_code == 200 for _ in range(50))


@pytest.mark.parametrize("path", ["/balance/", "/balance/async/"])
def test_the_balance_is_limited(client, throttle_limits, path):
    throttle_limits(stripe="1/m")
    assert client.get(path).status_code == 200
    assert client.get(path).status_code == 503


def test_the_admin_shows_the_limits(throttle_server, admin_client, throttle_limits):
    throttle_limits(stripe="1/m")
    assert b"stripe" in admin_client.get("/admin/celery_throttle/limit/").content


@pytest.fixture
def worker(throttle_server, transactional_db):
    app.conf.task_always_eager = False
    try:
        with start_worker(app, pool="solo", perform_ping_check=False):
            yield
    finally:
        app.conf.task_always_eager = True


def test_a_worker_charges_in_time(worker, client, throttle_limits, throttle_runs):
    throttle_limits(stripe="2/s")
    for _ in range(5):
        client.post("/orders/acme/")
    throttle_runs.wait_for_starts(5, name="orders.tasks.charge")
    throttle_runs.assert_throttled("orders.tasks.charge")
    # The burst of 1, plus 2/s in a second.
    throttle_runs.assert_most_starts(3, seconds=1, name="orders.tasks.charge")
