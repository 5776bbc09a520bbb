"""The page of one task: why it waits, and until when."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flask import Flask, render_template, request

from celery_throttle.observe.status.tasks import explain_task
from celery_throttle.web.site import Site


@dataclass(frozen=True)
class TaskPages:
    """The page of one task."""

    site: Site

    def add_to(self, app: Flask) -> None:
        """Add the page to an app."""
        app.add_url_rule("/task", "task", self.task)

    def task(self) -> str:
        """Show where the task of the argument ``id`` is, and why it does not run yet."""
        site, task_id = self.site, request.args.get("id", "").strip()
        if not task_id:
            return render_template("task.html", task=None)
        arguments: list[str] = []

        def read_message(packed: bytes) -> str | None:
            if site.show_arguments:
                arguments[:] = site.limiter.task_arguments(packed)
            return site.limiter.task_name(packed)

        task = site.run(explain_task(site.observer, task_id, read_message))
        queue = None if task.queue is None else site.queue_name(task.queue)
        return render_template(
            "task.html",
            task=replace(task, queue=queue),
            arguments=arguments,
            state=site.limiter.stored_state(task_id),
            at=site.read_time(),
        )
