"""The pages of actions: a form, a preview, and the request that carries the action out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from flask import Flask, abort, g, redirect, render_template, request, url_for
from werkzeug import Response

from celery_throttle.errors import LimitError, PublishRejectedError, QueueNotFoundError
from celery_throttle.limits.author import Author
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.stored import shown_ref
from celery_throttle.observe.status_text import limit_text, ref_text
from celery_throttle.store.keys import Keys, fan_out_ref
from celery_throttle.web.actions import Action, Consequence, TimeIsUpError
from celery_throttle.web.fan_out_actions import FAN_OUT_ACTIONS
from celery_throttle.web.forms import Form, read_form
from celery_throttle.web.limit_actions import LIMIT_ACTIONS
from celery_throttle.web.removal_actions import REMOVAL_ACTIONS
from celery_throttle.web.security import author_name, check_action, one_line
from celery_throttle.web.site import Site, read_ref

Reply = str | Response | tuple[str, int]

#: What a user can correct in the form.
_CORRECTABLE = (LimitError, PublishRejectedError, QueueNotFoundError)

_ACTIONS_OF_LIMITS = (*LIMIT_ACTIONS, *REMOVAL_ACTIONS)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The limit, key or fan-out of an action.

    Attributes:
        value: what the action gets.
        text: what it is, in words.
        logged: its name in the log of changes.
        endpoint: the page that shows it.
        in_path: its arguments in the path of the page of the action.
        fields: its other arguments.
    """

    value: LimitRef | str
    text: str
    logged: str
    endpoint: str
    in_path: dict[str, str]
    fields: dict[str, str]

    @property
    def page(self) -> dict[str, str]:
        """The arguments of the page that shows it."""
        if isinstance(self.value, str):
            return {"search": self.value}
        return {**self.in_path, **self.fields}


@dataclass(frozen=True)
class ActionPages:
    """The pages of actions. Each request checks for itself whether it is allowed."""

    site: Site

    def add_to(self, app: Flask) -> None:
        """Add the pages to an app."""
        for action in _ACTIONS_OF_LIMITS:
            self._add(app, action, f"/limits/<name>/{action.name}", f"limit_{action.name}")
        for action in FAN_OUT_ACTIONS:
            self._add(app, action, f"/fan-outs/{action.name}", f"fan_out_{action.name}")
        app.jinja_env.globals.update(
            limit_actions=partial(self._offer, _ACTIONS_OF_LIMITS),
            fan_out_actions=partial(self._offer, FAN_OUT_ACTIONS),
        )

    def _add(self, app: Flask, action: Action, rule: str, endpoint: str) -> None:
        view = partial(self._serve, action)
        app.add_url_rule(rule, endpoint, view, methods=["GET", "POST"])

    def _offer(self, actions: Iterable[Action]) -> list[Action]:
        """Return the actions that the user of this request may carry out on this page."""
        has_app = self.site.has_app
        return [one for one in actions if one.name in g.actions and (has_app or not one.needs_app)]

    def _serve(self, action: Action, name: str | None = None) -> Reply:
        """Show the form or the preview of an action, or carry it out.

        ``name``: of the limit; without it, the action is of a fan-out.
        """
        check_action(request, action.name)
        if action.needs_app and not self.site.has_app:
            abort(
                403,
                f"{action.name} needs the app, and this page has only the server: serve the page "
                "with celery -A APP throttle web, or give create_app() a Throttle.",
            )
        subject = _read_fan_out() if name is None else _read_limit(name)
        visit = _Visit(self.site, action, subject, read_form(action.fields, request.values))
        if request.method == "POST":
            return visit.carry_out()
        if action.fields and "preview" not in request.args:
            return visit.show()
        return visit.preview()


@dataclass(frozen=True, slots=True)
class _Visit:
    """One request for the page of an action."""

    site: Site
    action: Action
    subject: _Subject
    form: Form

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of the page with the form as it is filled in."""
        return {**self.subject.in_path, **self.subject.fields, **self.form.texts}

    def show(self, consequence: Consequence | None = None, problem: str = "") -> str:
        """Show the form, or the consequence with a button."""
        return render_template(
            "action.html",
            action=self.action,
            subject=self.subject,
            form=self.form,
            is_filled=request.method == "POST" or "preview" in request.args,
            consequence=consequence,
            problem=problem,
            about=self.action.describe(self.site, self.subject.value),
            reason=request.values.get("reason", ""),
            done=self.site.find_done(),
            edit_url=_url(str(request.endpoint), self.arguments),
        )

    def preview(self, problem: str = "") -> Reply:
        """Show what the action will do. With an error, show what the user has to correct."""
        consequence = None
        if not self.form.errors:
            try:
                consequence = self.action.preview(self.site, self.subject.value, self.form.values)
            except _CORRECTABLE as error:
                problem = str(error)
        page = self.show(consequence, problem)
        return (page, 400) if problem or self.form.errors else page

    def carry_out(self) -> Reply:
        """Carry the action out, and lead to the page that shows what was changed."""
        if self.form.errors:
            return self.preview()
        newest = self.site.limiter.changes(most=1)
        reason = one_line(request.form.get("reason", ""))
        subject, is_complete = self.subject, True
        try:
            author = Author.of(author_name(), reason or None)
            self.action.run(self.site, subject.value, self.form.values, author)
        except _CORRECTABLE as error:
            return self.preview(str(error))
        except TimeIsUpError:
            is_complete = False
        done = self._find_done(author, newest[0].id if newest else None)
        if is_complete:
            return redirect(_url(subject.endpoint, {**subject.page, "done": done}), 303)
        rest = {"reason": reason, "done": done, "preview": "1"}
        return redirect(_url(str(request.endpoint), {**self.arguments, **rest}), 303)

    def _find_done(self, author: Author, newest: str | None) -> list[str]:
        """Return the ids of the changes that this request made; ``none`` if it changed nothing.

        ``newest``: the id of the newest change before.
        """
        since = takewhile(lambda change: change.id != newest, self.site.limiter.changes())
        own = [
            change.id
            for change in since
            if (change.limit, change.author and change.author.by)
            == (self.subject.logged, author.by)
        ]
        return own or ["none"]


def _url(endpoint: str, arguments: Mapping[str, Any]) -> str:
    return url_for(endpoint, **arguments)


def _read_limit(name: str) -> _Subject:
    ref = read_ref(name)
    fields = {} if ref.key is None else {"key": ref.key}
    return _Subject(ref, ref_text(ref), Keys.field(ref), "limit", {"name": ref.name}, fields)


def _read_fan_out() -> _Subject:
    name = request.values.get("name", "")
    ref = fan_out_ref(name)
    text = limit_text(*shown_ref(ref))
    return _Subject(name, text, f"fan-out {ref.key}", "fan_outs", {}, {"name": name})
