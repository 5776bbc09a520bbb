"""Waiting tasks are discarded, and end as revoked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, signals
from celery.exceptions import ChordError, TaskRevokedError

from celery_throttle.bulk.removal import withdrawal
from celery_throttle.bulk.removal.counts import Removal
from celery_throttle.bulk.removal.revoker import Revoker
from celery_throttle.bulk.removal.withdrawal import BATCH_SIZE
from celery_throttle.operations.waiting import claim_call, quarantine_call
from tests.bulk.removal.conftest import MakeSite, Site
from tests.bulk.removal.test_drain import park_elsewhere


def test_the_state_of_a_task(site: Site) -> None:
    [task_id] = site.send(1)
    [ignored] = site.send(1, "forgotten")
    [kept] = site.send(1, "tenant", "a")
    site.park()
    assert site.throttle["mail"].drop().removed == 1
    assert site.app.AsyncResult(kept).state == "REVOKED"
    assert site.app.AsyncResult(task_id).state == "PENDING"
    assert site.throttle["api"].drop(reason="no longer needed") == Removal(2, 0, 0, 0)
    error = site.app.AsyncResult(task_id).result
    assert isinstance(error, TaskRevokedError)
    assert str(error) == "no longer needed"
    assert site.app.AsyncResult(ignored).state == "PENDING"
    assert (site.waiting(), site.claimed(), site.at_broker()) == (0, 0, [])


def test_no_worker_reports_it(site: Site) -> None:
    site.send(1)
    site.park()
    calls: list[Any] = []

    def note(**about: Any) -> None:
        calls.append(about)

    signals.task_revoked.connect(note)
    site.throttle.drop_all()
    signals.task_revoked.disconnect(note)
    assert calls == []


def test_the_chord_of_a_task_fails(site: Site) -> None:
    free = site.app.tasks["free"]
    header = [site.app.tasks["call"].s(number) for number in range(2)]
    result = chord(header)(free.s())
    site.park()
    assert site.throttle["api"].drop().removed == 2
    assert isinstance(result.result, ChordError)
    assert "TaskRevokedError" in str(result.result)


def test_a_fan_out_counts_them(site: Site) -> None:
    call = site.app.tasks["call"]
    job = site.throttle.fan_out((call.s(n) for n in range(BATCH_SIZE + 5)), "nightly")
    assert site.throttle["api"].drop().removed == BATCH_SIZE + 5
    progress = job.progress()
    assert (progress.revoked, progress.waiting, progress.complete) == (BATCH_SIZE + 5, 0, True)


def test_a_fan_out_counts_what_was_dropped_before_an_interruption(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = site.app.tasks["call"]
    job = site.throttle.fan_out((call.s(n) for n in range(5)), "nightly")
    dispose, calls = Revoker.dispose, iter(range(3))

    def interrupted(*args: Any) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        dispose(*args)

    monkeypatch.setattr(Revoker, "dispose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        site.throttle["api"].drop()
    progress = job.progress()
    assert (progress.revoked, progress.waiting) == (3, 2)
    assert site.claimed() == 0


def test_a_drained_task_of_a_fan_out_still_belongs_to_it(site: Site) -> None:
    call = site.app.tasks["call"]
    job = site.throttle.fan_out([call.s(1)], "nightly")
    site.throttle.drain_all()
    progress = job.progress()
    assert (progress.waiting, progress.running, progress.complete) == (0, 1, False)
    site.park()
    site.throttle["api"].drop()
    assert job.progress().revoked == 1


def test_tasks_of_the_first_protocol(make_site: MakeSite) -> None:
    site = make_site(task_protocol=1)
    [task_id] = site.send(1)
    site.park()
    assert site.throttle["api"].drop().removed == 1
    assert site.app.AsyncResult(task_id).state == "REVOKED"


def test_tasks_that_no_worker_could_run(site: Site, make_site: MakeSite) -> None:
    [task_id] = site.send(1)
    site.park()
    park_elsewhere(site, site.throttle.qualify("celery"))
    other = make_site()
    del other.app.tasks["call"]
    assert other.throttle["api"].drop().removed == 2
    for dropped in (task_id, f"in {site.throttle.qualify('celery')}"):
        assert site.app.AsyncResult(dropped).state == "REVOKED"


def test_a_task_in_quarantine_whose_message_is_damaged(site: Site) -> None:
    [task_id] = site.send(1)
    site.park()
    keys = site.throttle.keys
    queue = keys.queue(site.throttle.qualify("celery"))
    row = site.client.hget(queue.messages, task_id)
    site.client.hset(queue.messages, task_id, row.replace(b'"headers"', b'"hea"ers"'))
    site.throttle["api"].reset()
    site.throttle.store.run(claim_call(keys, "worker", queue, range(1, 2), lease=60))
    site.throttle.store.run(quarantine_call(keys, "worker", 1, "damaged "))
    assert site.throttle.explain(task_id).location == "quarantine"
    assert site.throttle.drain_all() == Removal(0, 1, 0, 0)
    assert site.throttle["api"].drop() == Removal(1, 0, 0, 0)
    assert site.throttle.count_waiting().waiting == 0
    assert site.throttle.explain(task_id).location == "unknown"
    assert site.app.AsyncResult(task_id).state == "REVOKED"


def test_an_id_that_the_result_backend_cannot_have(site: Site, tmp_path: Path) -> None:
    """Its task waits again and is named, also in a file. The others are dropped."""
    with Celery(broker=site.app.conf.broker_url, set_as_current=False) as sender:
        sender.send_task("call", (1,), task_id="a\ud800b")
    [task_id] = site.send(1)
    site.park()
    handler = logging.FileHandler(tmp_path / "log", encoding="utf-8")
    withdrawal.logger.addHandler(handler)
    assert site.throttle["api"].drop() == Removal(1, 1, 0, 0)
    withdrawal.logger.removeHandler(handler)
    handler.close()
    [odd] = site.throttle["api"].list_waiting().tasks
    assert f"Could not drop task {odd.task_id}, it waits again" in (tmp_path / "log").read_text()
    assert site.app.AsyncResult(task_id).state == "REVOKED"


def test_a_result_backend_that_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.send(2)
    site.park()
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise ConnectionError("it is down")

        patch.setattr(site.app.backend, "mark_as_revoked", fail)
        with pytest.raises(ConnectionError):
            site.throttle["api"].drop()
    assert (site.waiting(), site.claimed()) == (2, 0)
    assert site.throttle["api"].drop().removed == 2
