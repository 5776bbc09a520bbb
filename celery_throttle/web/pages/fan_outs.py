"""The page of fan-outs: their progress, with the expected end."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, render_template, request

from celery_throttle.observe.status.fan_outs import forecast_fan_outs, read_fan_outs
from celery_throttle.observe.status.limits import MAX_LINES
from celery_throttle.web.pages.paging import read_page
from celery_throttle.web.site import Site

#: Rows of a page.
_PAGE_SIZE = 50


@dataclass(frozen=True)
class FanOutPages:
    """The page of fan-outs."""

    site: Site

    def add_to(self, app: Flask) -> None:
        """Add the page to an app."""
        app.add_url_rule("/fan-outs", "fan_outs", self.fan_outs)

    def fan_outs(self) -> str:
        """Show the fan-outs whose names contain the search text, page by page."""
        site, search = self.site, request.args.get("search", "").strip()
        every = site.run(read_fan_outs(site.observer))
        found = [one for one in every if search.lower() in one.name.lower()]
        page = read_page(len(found), _PAGE_SIZE)
        rows = found[page.first : page.end]
        return render_template(
            "fan_outs.html",
            fan_outs=rows,
            forecasts=site.run(forecast_fan_outs(site.observer, rows, MAX_LINES)),
            page=page,
            search=search,
            done=site.find_done(),
            at=site.read_time(),
        )
