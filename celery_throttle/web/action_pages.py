"""The pages of actions: a form, a preview, and the request that carries the action out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from flask import Flask, abort, g, redirect, render_template, request, url_for
from werkzeug import Response

from celery_throttle.errors import LimitError, PublishRejectedError, QueueNotFoundError
from celery_throttle.observe.status.fan_outs import Progress
from celery_throttle.observe.status_text import limit_text
from celery_throttle.observe.text import describe_subject
from celery_throttle.operations.author import Author
from celery_throttle.store.keys import Keys, fan_out_ref
from celery_throttle.web.actions import (
    FAN_OUT_ACTIONS,
    LIMIT_ACTIONS,
    Action,
    Consequence,
    TimeIsUpError,
    sort_actions,
)
from celery_throttle.web.security import author_name, check_action, one_line
from celery_throttle.web.site import Site, read_ref

Reply = str | Response | tuple[str, int]

#: What a user can correct in the form.
_CORRECTABLE = (LimitError, PublishRejectedError, QueueNotFoundError)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The limit, key or fan-out of an action."""

    handle: Any  #: has the methods of the actions
    text: str  #: what it is, in words
    logged: str  #: its name in the log of changes
    endpoint: str  #: the page that shows it
    page: dict[str, Any]  #: the arguments of that page
    fields: dict[str, str]  #: the arguments of the page of the action that are not in its path


def _read_limit(site: Site, name: str) -> _Subject:
    ref = read_ref(name)
    fields = {} if ref.key is None else {"key": ref.key}
    page = {"name": ref.name, **fields}
    return _Subject(site.throttle[ref], limit_text(*ref), Keys.field(ref), "limit", page, fields)


def _read_fan_out(site: Site) -> _Subject:
    name = request.values.get("name", "")
    handle, logged = site.throttle.fan_out_named(name), Keys.field(fan_out_ref(name))
    page, fields = {"search": name}, {"name": name}
    return _Subject(handle, describe_subject(logged), logged, "fan_outs", page, fields)


def add_actions(app: Flask, site: Site) -> None:
    """Add the pages of all actions. Each request checks for itself whether it is allowed."""
    for kind, path, actions in (
        ("limit", "/limits/<name>", LIMIT_ACTIONS),
        ("fan_out", "/fan-outs", FAN_OUT_ACTIONS),
    ):
        for action in actions:
            endpoint, view = f"{kind}_{action.name}", partial(_serve, site, action)
            app.add_url_rule(f"{path}/{action.name}", endpoint, view, methods=["GET", "POST"])
    offered = app.jinja_env.globals
    offered["limit_actions"] = lambda status: sort_actions(_offer(site, LIMIT_ACTIONS), status)
    offered["fan_out_actions"] = partial(_offer_of_fan_out, site)


def _offer(site: Site, actions: Sequence[Action]) -> list[Action]:
    """Return the actions that the user of this request may carry out on this page."""
    return [one for one in actions if one.name in g.actions and (site.has_app or not one.needs_app)]


def _offer_of_fan_out(site: Site, progress: Progress | None) -> list[Action]:
    """Return the actions that apply to a fan-out; all of them if ``progress`` is None."""
    offered = _offer(site, FAN_OUT_ACTIONS)
    return [one for one in offered if not progress or progress.paused or one.name != "resume"]


def _serve(site: Site, action: Action, name: str | None = None) -> Reply:
    """Show the form or the preview of an action, or carry it out.

    ``name``: of the limit; without it, the action is of a fan-out.
    """
    check_action(request, action.name)
    if action.needs_app and not site.has_app:
        abort(
            403,
            f"{action.name} needs the app, and this page has only the server: serve the page "
            "with celery -A APP throttle web, or give create_app() a Throttle.",
        )
    subject = _read_fan_out(site) if name is None else _read_limit(site, name)
    visit = _Visit(site, action, subject)
    if request.method == "POST":
        return visit.carry_out()
    if action.fields and "preview" not in request.args:
        return visit.show()
    return visit.preview()


def _is_filled() -> bool:
    """Whether the user has sent the form, maybe with empty fields."""
    return request.method == "POST" or "preview" in request.args


def _read_text(name: str) -> str:
    """Return the text of a field. What is typed comes behind what is chosen, and counts."""
    texts = [text.strip() for text in request.values.getlist(name)]
    return next(filter(None, reversed(texts)), "").replace("\r\n", "\n")


class _Visit:
    """One request for the page of an action, with the fields as a user filled them in."""

    def __init__(self, site: Site, action: Action, subject: _Subject) -> None:
        self.site, self.action, self.subject = site, action, subject
        self.texts = {field.name: _read_text(field.name) for field in action.fields}
        in_force = "\n".join(subject.handle.status().clauses) if action.name == "define" else ""
        if in_force and not _is_filled() and not self.texts["limits"]:
            self.texts["limits"] = in_force
        #: The value of each field; None if it is empty, or has an error.
        self.values: dict[str, Any] = dict.fromkeys(self.texts)
        self.errors: dict[str, str] = {}  #: what is wrong with a field
        for field in action.fields:
            text = self.texts[field.name]
            if not text and field.default is None:
                self.errors[field.name] = f"This is empty; allowed: {field.hint}"
            elif text:
                try:
                    self.values[field.name] = field.parse(text)
                except LimitError as error:
                    self.errors[field.name] = str(error)
        if in_force and self.values["weight"] is not None and self.texts["limits"] == in_force:
            self.values["limits"] = None  # filled in by the page: the user changes the weight

    def show(self, consequence: Consequence | None = None, problem: str = "") -> str:
        """Show the form, or the consequence with a button."""
        replaces = self.action.name in ("define", "undefine")
        return render_template(
            "action.html",
            action=self.action,
            subject=self.subject,
            texts=self.texts,
            errors=self.errors,
            is_filled=_is_filled(),
            consequence=consequence,
            problem=problem,
            in_force=self.subject.handle.status() if replaces else None,
            reason=request.values.get("reason", ""),
            done=self.site.find_done(),
            edit_url=self._url(reason=request.values.get("reason") or None),
        )

    def _url(self, **arguments: Any) -> str:
        """Return the URL of this page with the form as it is filled in."""
        filled = {**(request.view_args or {}), **self.subject.fields, **self.texts, **arguments}
        return url_for(str(request.endpoint), **filled)

    def preview(self, problem: str = "") -> Reply:
        """Show what the action will do. With an error, show what the user has to correct."""
        consequence = None
        if not self.errors:
            try:
                consequence = self.action.preview(self.site, self.subject.handle, self.values)
            except _CORRECTABLE as error:
                problem = str(error)
        page = self.show(consequence, problem)
        return (page, 400) if problem or self.errors else page

    def carry_out(self) -> Reply:
        """Carry the action out, and lead to the page that shows what was changed."""
        if self.errors:
            return self.preview()
        newest = self.site.read_changes(1)
        reason = one_line(request.form.get("reason", ""))
        subject, is_complete = self.subject, True
        try:
            author = Author.of(author_name(), reason or None)
            self.action.run(subject.handle, self.values, author)
        except _CORRECTABLE as error:
            return self.preview(str(error))
        except TimeIsUpError:
            is_complete = False
        done = self._find_done(author, newest[0].id if newest else None)
        if is_complete:
            return redirect(url_for(subject.endpoint, **subject.page, done=done), 303)
        return redirect(self._url(reason=reason, done=done, preview="1"), 303)

    def _find_done(self, author: Author, newest: str | None) -> list[str]:
        """Return the ids of the changes that this request made; ``none`` if it changed nothing.

        ``newest``: the id of the newest change before.
        """
        own = (self.subject.logged, author.by)
        since = takewhile(lambda change: change.id != newest, self.site.read_changes(100))
        ids = [one.id for one in since if (one.limit, one.author and one.author.by) == own]
        return ids or ["none"]
