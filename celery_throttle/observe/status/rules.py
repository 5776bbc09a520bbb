"""The rules file in force, and the workers that have another one."""

from __future__ import annotations

import json

from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.times import at_time
from celery_throttle.observe.values import RulesStatus, WorkerRules
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.rules import RulesVersion
from celery_throttle.store.script import Call, script


def read_rules_status(observer: Observer) -> Plan[RulesStatus | None]:
    """Return which rules are in force; None if no file was ever put in force or read."""
    packed, _, *reports = yield _rules_call(observer)
    version = RulesVersion.unpack(packed) if packed else None
    digest = version.digest if version else ""
    workers = []
    for worker, text in zip(reports[::2], reports[1::2], strict=True):
        about = json.loads(text)
        if about["error"] or about["digest"] != digest:
            error = about["error"] or None
            workers.append(WorkerRules(worker.decode(), about["path"], error))
    if version is None:
        return RulesStatus(None, None, None, None, tuple(workers)) if workers else None
    return RulesStatus(
        version.source,
        at_time(version.modified),
        at_time(version.applied),
        version.author,
        tuple(workers),
    )


def read_rules_in_force(observer: Observer) -> Plan[Rules]:
    """Return the rules of the file that is in force; empty ones if none is."""
    packed, text, *_ = yield _rules_call(observer)
    if not packed:
        return Rules()
    return read_rules(text.decode(), RulesVersion.unpack(packed).source)


def _rules_call(observer: Observer) -> Call:
    names = [observer.keys.rules, observer.keys.rules_files, observer.keys.membership]
    return Call(script("read_rules"), names, [observer.now()])
