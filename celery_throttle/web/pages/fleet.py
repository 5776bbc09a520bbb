"""The pages of workers, and of the changes of limits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flask import Flask, abort, render_template, request

from celery_throttle.observe.status.fleet import read_fleet, read_rules_status, read_workers
from celery_throttle.web.site import Site

#: Workers that are shown, of each kind.
_MAX_WORKERS = 500

#: Changes of a page, and how the id of a change looks.
_CHANGES_PAGE, _CHANGE_ID = 50, re.compile(r"[0-9]{1,15}(-[0-9]{1,15})?")


@dataclass(frozen=True)
class FleetPages:
    """The pages of workers and of changes."""

    site: Site

    def add_to(self, app: Flask) -> None:
        """Add the pages to an app."""
        app.add_url_rule("/workers", "workers", self.workers)
        app.add_url_rule("/history", "history", self.history)

    def workers(self) -> str:
        """Show the workers, their claims, the queues with waiting tasks, and the rules file."""
        site = self.site
        fleet = site.run(read_fleet(site.observer))
        rules = site.run(read_rules_status(site.observer))
        return render_template(
            "workers.html",
            fleet=fleet,
            queues={
                site.queue_name(name): is_consumed for name, is_consumed in fleet.consumed.items()
            },
            workers=site.run(read_workers(site.observer, _MAX_WORKERS)),
            rules=rules,
            others={one.worker: one for one in rules.others} if rules else {},
        )

    def history(self) -> str:
        """Show the changes of all limits, the newest first."""
        before = request.args.get("before") or None
        if before is not None and not _CHANGE_ID.fullmatch(before):
            abort(400, f"{before!r} is not the id of a change.")
        changes = self.site.limiter.changes(most=_CHANGES_PAGE + 1, before=before)
        more = changes[_CHANGES_PAGE - 1].id if len(changes) > _CHANGES_PAGE else None
        return render_template(
            "history.html", changes=changes[:_CHANGES_PAGE], before=before, more=more
        )
