"""The pages that show limits, tasks, fan-outs, workers and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flask import abort, render_template, request

from celery_throttle.limiter.sharded import read_waiting
from celery_throttle.limits.key import LimitRef, check_name
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.report import (
    advice_text,
    allowance_of,
    make_report,
    rates_of,
    read_recorded,
    refusals_text,
    report_pairs,
)
from celery_throttle.observe.status.fan_outs import forecast_fan_outs, read_fan_outs
from celery_throttle.observe.status.fleet import read_fleet, read_rules_status, read_workers
from celery_throttle.observe.status.limits import read_details, read_named, read_status
from celery_throttle.observe.status.stored import (
    CHANGE_ID,
    is_stored,
    list_keys,
    read_all,
    read_history,
    read_names,
)
from celery_throttle.observe.status.tasks import explain_task
from celery_throttle.observe.values import Change, LimitStatus, Status
from celery_throttle.observe.waiting import MAX_LINES
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import Keys
from celery_throttle.web.charts import draw_rows, draw_spark, draw_starts, time_labels
from celery_throttle.web.site import NEWEST_CHANGES, Site, TablePage, page_number, read_ref

#: Rows of a page, and of a page of fan-outs or changes.
_ROWS, _WIDE_ROWS = 100, 50
_SHOWN_CHANGES = 10

#: Workers that are shown, of each kind.
_MAX_WORKERS = 500

#: The lists of keys, by the argument of the page.
_KEY_LISTS = {
    "waiting": "Keys with waiting tasks",
    "paused": "Paused keys",
    "own": "Keys with their own limit or weight",
}

#: The times of a report, in hours.
_REPORT_HOURS = {"15 minutes": 0.25, "1 hour": 1, "24 hours": 24, "7 days": 168}


def limits(site: Site) -> str:
    """Show all limits whose names contain the search text, page by page."""
    search = request.args.get("search", "").strip()
    by_name = request.args.get("sort") == "name"
    stored: Mapping[str, Sequence[LimitStatus]] = {}
    if by_name:
        every = site.read(read_names)
    else:
        reading = site.limiter.read(read_all)
        found, stored = site.merged(reading), reading.values
        # Paused limits first, then those with the most tasks.
        found = sorted(found, key=lambda one: (not one.pauses, -one.waiting, one.name))
        every = [one.name for one in found]
    names = [name for name in every if search.lower() in name.lower()]
    page = TablePage.read(len(names), _ROWS)
    shown = names[page.rows]
    status = site.read(lambda observer: _read_shown(observer, shown, stored.get(observer.shard)))
    limits = sorted(status.limits, key=lambda one: shown.index(one.name))
    status = replace(status, limits=tuple(limits))
    return render_template(
        "limits.html",
        status=status,
        sparks={one.name: draw_spark(site.recent(one.name)) for one in status.limits},
        page=page,
        search=search,
        by_name=by_name,
    )


def _read_shown(
    observer: Observer, names: Sequence[str], stored: Sequence[LimitStatus] | None
) -> Plan[Status]:
    """Return the status of those of some limits that are in the shard.

    ``stored``: what is stored of all limits there, if it has been read.
    """
    if stored is None:
        here = {*(yield from read_names(observer))}
        return (yield from read_named(observer, [name for name in names if name in here]))
    return (yield from read_status(observer, [one for one in stored if one.name in names]))


def limit(site: Site, name: str) -> str:
    """Show everything about one limit, or one key of it."""
    ref = read_ref(name)
    status = site.read(lambda observer: read_details(observer, ref), ref)
    periods, changes = site.recent(name), _changes(site, ref)
    return render_template(
        "limit.html",
        ref=ref,
        at=site.read_time(),
        status=status,
        is_stored=site.read(lambda observer: is_stored(observer, ref), ref),
        allowance=allowance_of(status),
        starts=draw_starts(periods, rates_of(status, changes, periods)),
        rows=draw_rows(periods),
        times=time_labels(periods),
        refusals=refusals_text(status.totals),
        changes=changes[:_SHOWN_CHANGES],
        done=site.find_done(),
    )


def _changes(site: Site, ref: LimitRef) -> list[Change]:
    """Return the newest of all changes that are of a limit and its keys, or of one key."""
    own = Keys.field(ref)
    return [
        change
        for change in site.read_changes(NEWEST_CHANGES)
        if change.limit == own or (ref.key is None and change.limit.startswith(f"{own}:"))
    ]


def keys(site: Site, name: str) -> str:
    """Show keys of a limit, page by page."""
    which = request.args.get("which", "waiting")
    if which not in _KEY_LISTS:
        abort(400, f"There are no {which!r} keys; allowed: {', '.join(_KEY_LISTS)}.")
    ref, number = LimitRef(check_name(name), None), page_number()
    site.limiter.run_plan(site.limiter.plans.check_known(ref))
    # The keys of this page may be in any shard, and those before it as well.
    end = number * _ROWS
    total, found = site.read(lambda observer: list_keys(observer, name, which, 0, end), ref)
    return render_template(
        "keys.html",
        ref=ref,
        keys=found[end - _ROWS : end],
        page=TablePage(total, _ROWS, number),
        which=which,
        lists=_KEY_LISTS,
    )


def waiting(site: Site, name: str) -> str:
    """Show the tasks that wait at a limit, or at one key of it, page by page."""
    ref, number = read_ref(name), page_number()
    found = site.merged(read_waiting(site.limiter, ref, (number - 1) * _ROWS, _ROWS))
    return render_template(
        "waiting.html",
        ref=ref,
        at=site.read_time(),
        tasks=found.tasks,
        page=TablePage(found.waiting, _ROWS, number),
    )


def report(site: Site, name: str) -> str:
    """Show whether a limit is too strict or too loose."""
    hours = request.args.get("hours", 24.0, type=float)
    ref = LimitRef(check_name(name), None)
    recorded = site.read(lambda observer: read_recorded(observer, name, hours * 3600), ref)
    found, status = make_report(recorded), recorded.status
    return render_template(
        "report.html",
        report=found,
        pairs=report_pairs(found),
        advice=advice_text(found),
        granted=draw_starts(found.periods, rates_of(status, _changes(site, ref), found.periods)),
        rows=draw_rows(found.periods),
        labels=time_labels(found.periods),
        hours=hours,
        times=_REPORT_HOURS,
    )


def task(site: Site) -> str:
    """Show where the task of the argument ``id`` is, and why it does not run yet."""
    task_id = request.args.get("id", "").strip()
    if not task_id:
        return render_template("task.html", task=None)
    arguments: list[str] = []

    def read_message(packed: bytes) -> str | None:
        if site.show_arguments:
            arguments[:] = site.limiter.task_arguments(packed)
        return site.limiter.task_name(packed)

    return render_template(
        "task.html",
        task=site.read(lambda observer: explain_task(observer, task_id, read_message)),
        arguments=arguments,
        state=site.limiter.stored_state(task_id),
        at=site.read_time(),
    )


def fan_outs(site: Site) -> str:
    """Show the fan-outs whose names contain the search text, page by page."""
    search = request.args.get("search", "").strip()
    every = site.read(read_fan_outs)
    found = [one for one in every if search.lower() in one.name.lower()]
    page = TablePage.read(len(found), _WIDE_ROWS)
    rows = found[page.rows]
    return render_template(
        "fan_outs.html",
        fan_outs=rows,
        forecasts=site.read(lambda observer: forecast_fan_outs(observer, rows, MAX_LINES)),
        page=page,
        search=search,
        done=site.find_done(),
        at=site.read_time(),
    )


def workers(site: Site) -> str:
    """Show the workers, their claims, the queues with waiting tasks, and the rules file."""
    fleet = site.read(read_fleet)
    rules = site.read(read_rules_status)
    return render_template(
        "workers.html",
        fleet=fleet,
        workers=site.read(lambda observer: read_workers(observer, _MAX_WORKERS)),
        rules=rules,
        others={one.worker: one for one in rules.others} if rules else {},
    )


def history(site: Site) -> str:
    """Show the changes of all limits and the last 429 of each, the newest first."""
    before = request.args.get("before") or None
    if before is not None and not CHANGE_ID.fullmatch(before):
        abort(400, f"{before!r} is not the id of a change.")
    changes = site.read(lambda observer: read_history(observer, _WIDE_ROWS + 1, before))
    more = changes[_WIDE_ROWS - 1].id if len(changes) > _WIDE_ROWS else None
    return render_template("history.html", changes=changes[:_WIDE_ROWS], before=before, more=more)


PAGES: dict[str, Callable[..., str]] = {
    "/": limits,
    "/limits/<name>": limit,
    "/limits/<name>/keys": keys,
    "/limits/<name>/waiting": waiting,
    "/limits/<name>/report": report,
    "/task": task,
    "/fan-outs": fan_outs,
    "/workers": workers,
    "/history": history,
}
