"""The pages of limits: all of them, one, its keys, its waiting tasks, and its report."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flask import Flask, abort, render_template, request

from celery_throttle.limits.key import LimitRef, check_name
from celery_throttle.observe.report import advice_text, allowance_of, refusals_text, report_pairs
from celery_throttle.observe.status.limits import read_named
from celery_throttle.observe.status.stored import is_stored, list_keys, read_all, read_names
from celery_throttle.observe.values import Change
from celery_throttle.store.keys import Keys
from celery_throttle.web.pages.charts import draw_starts, draw_waiting
from celery_throttle.web.pages.paging import Page, number_argument, read_page
from celery_throttle.web.site import Site, read_ref

#: Rows of a page.
_LIMITS_PAGE, _ROWS_PAGE = 100, 100

#: The newest changes among which those of a limit are searched, and how many of them are shown.
_SEARCHED_CHANGES, _SHOWN_CHANGES = 200, 10

#: The lists of keys, by the argument of the page.
_KEY_LISTS = {
    "waiting": "Keys with waiting tasks",
    "paused": "Paused keys",
    "own": "Keys with their own limit or weight",
}

#: The times of a report, in hours.
_REPORT_HOURS = {"15 minutes": 0.25, "1 hour": 1, "24 hours": 24, "7 days": 168}


@dataclass(frozen=True)
class LimitPages:
    """The pages of limits."""

    site: Site

    def add_to(self, app: Flask) -> None:
        """Add the pages to an app."""
        app.add_url_rule("/", "limits", self.limits)
        app.add_url_rule("/limits/<name>", "limit", self.limit)
        app.add_url_rule("/limits/<name>/keys", "keys", self.keys)
        app.add_url_rule("/limits/<name>/waiting", "waiting", self.waiting)
        app.add_url_rule("/limits/<name>/report", "report", self.report)

    def limits(self) -> str:
        """Show all limits whose names contain the search text, page by page."""
        site, search = self.site, request.args.get("search", "").strip()
        by_waiting = request.args.get("sort") == "waiting"
        names = [
            name for name in self._names(by_waiting=by_waiting) if search.lower() in name.lower()
        ]
        page = read_page(len(names), _LIMITS_PAGE)
        status = site.run(read_named(site.observer, names[page.first : page.end]))
        stranded = [
            replace(one, queue=site.queue_name(one.queue), what=site.queue_name(one.what))
            for one in status.stranded
        ]
        charts = {one.name: draw_starts(site.recent(one.name), None) for one in status.limits}
        return render_template(
            "limits.html",
            status=status,
            stranded=stranded,
            charts=charts,
            page=page,
            search=search,
            by_waiting=by_waiting,
        )

    def _names(self, *, by_waiting: bool) -> list[str]:
        observer = self.site.observer
        if not by_waiting:
            return self.site.run(read_names(observer))
        statuses = self.site.run(read_all(observer))
        return [one.name for one in sorted(statuses, key=lambda one: (-one.waiting, one.name))]

    def limit(self, name: str) -> str:
        """Show everything about one limit, or one key of it."""
        site, ref = self.site, read_ref(name)
        details = site.limiter[ref].status()
        periods = site.recent(name)
        # The charts are of all keys, the rate would be of one.
        allowance = allowance_of(details) if ref.key is None else None
        queues = [replace(one, name=site.queue_name(one.name)) for one in details.queues]
        return render_template(
            "limit.html",
            ref=ref,
            at=site.read_time(),
            details=details,
            is_stored=site.run(is_stored(site.observer, ref)),
            status=details,
            queues=queues,
            allowance=allowance,
            starts=draw_starts(periods, allowance and allowance.per_second),
            waiting=draw_waiting(periods),
            refusals=refusals_text(details.totals),
            changes=self._changes(ref),
            done=site.find_done(),
        )

    def _changes(self, ref: LimitRef) -> list[Change]:
        """Return the newest changes of a limit, with those of its keys, or of one key."""
        own = Keys.field(ref)
        found = [
            change
            for change in self.site.limiter.changes(most=_SEARCHED_CHANGES)
            if change.limit == own or (ref.key is None and change.limit.startswith(f"{own}:"))
        ]
        return found[:_SHOWN_CHANGES]

    def keys(self, name: str) -> str:
        """Show keys of a limit, page by page."""
        which = request.args.get("which", "waiting")
        if which not in _KEY_LISTS:
            abort(400, f"There are no {which!r} keys; allowed: {', '.join(_KEY_LISTS)}.")
        site, ref = self.site, LimitRef(check_name(name), None)
        site.run(site.observer.check_known(ref))
        first = (number_argument("page") - 1) * _ROWS_PAGE
        total, found = site.run(list_keys(site.observer, name, which, first, _ROWS_PAGE))
        return render_template(
            "keys.html",
            ref=ref,
            keys=found,
            page=Page(total, first, _ROWS_PAGE),
            which=which,
            lists=_KEY_LISTS,
        )

    def waiting(self, name: str) -> str:
        """Show the tasks that wait at a limit, or at one key of it, page by page."""
        site, ref = self.site, read_ref(name)
        first = (number_argument("page") - 1) * _ROWS_PAGE
        found = site.limiter[ref].list_waiting(first=first, most=_ROWS_PAGE)
        tasks = [replace(task, queue=site.queue_name(task.queue)) for task in found.tasks]
        return render_template(
            "waiting.html",
            ref=ref,
            at=site.read_time(),
            tasks=tasks,
            page=Page(found.waiting, first, _ROWS_PAGE),
        )

    def report(self, name: str) -> str:
        """Show whether a limit is too strict or too loose."""
        hours = request.args.get("hours", 24.0, type=float)
        report = self.site.limiter[check_name(name)].report(hours * 3600)
        return render_template(
            "report.html",
            report=report,
            pairs=report_pairs(report),
            advice=advice_text(report),
            granted=draw_starts(report.periods, None),
            waiting=draw_waiting(report.periods),
            hours=hours,
            times=_REPORT_HOURS,
        )
