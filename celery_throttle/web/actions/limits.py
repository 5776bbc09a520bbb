"""The actions that change a limit, or one key of it."""

from __future__ import annotations

from celery_throttle.errors import LimitValueError
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.definitions import (
    limits_below,
    preview_definition,
    preview_pause,
    preview_reset,
    preview_resume,
)
from celery_throttle.observe.status_text import (
    below_text,
    clauses_text,
    pause_length_text,
    ref_text,
    waiting_text,
)
from celery_throttle.observe.text import count
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import parse_definition
from celery_throttle.web.actions.action import (
    DURATION_HINT,
    PAUSE_SECONDS,
    Action,
    Consequence,
    Values,
)
from celery_throttle.web.actions.forms import Field, parse_limits, parse_seconds, parse_weight
from celery_throttle.web.site import Site


def _preview_pause(site: Site, ref: LimitRef, values: Values) -> Consequence:
    site.run(site.limiter.plans.check_known(ref))
    preview = site.run(preview_pause(site.observer, [ref], values["for"]))
    if values["for"] is None:
        text = f"{waiting_text(preview.waiting)}; none starts until it is resumed."
        return Consequence(text)
    pauses = site.limiter[ref].status().pauses
    in_force = max((pause.seconds for pause in pauses if pause.key == ref.key), default=0.0)
    if in_force > values["for"]:
        return Consequence(
            f"This changes nothing: {ref_text(ref)} is paused {pause_length_text(in_force)}, and a "
            "pause is never shortened. Resume it first."
        )
    return Consequence("", preview)


def _pause(site: Site, ref: LimitRef, values: Values, author: Author) -> None:
    site.run(site.limiter.plans.pause(ref, values["for"], author=author))


def _preview_resume(site: Site, ref: LimitRef, _: Values) -> Consequence:
    site.run(site.limiter.plans.check_known(ref))
    status = site.limiter[ref].status()
    keys = count(status.paused_keys, "key")
    rest = f"{keys} {'stays' if status.paused_keys == 1 else 'stay'} paused."
    text = rest if status.paused_keys else ""
    if all(pause.key != ref.key for pause in status.pauses):
        return Consequence(f"It is not paused. {text}")
    return Consequence(text, site.run(preview_resume(site.observer, [ref])))


def _resume(site: Site, ref: LimitRef, _: Values, author: Author) -> None:
    site.run(site.limiter.plans.resume(ref, author))


def _preview_define(site: Site, ref: LimitRef, values: Values) -> Consequence:
    if values["limits"] is None and values["weight"] is None:
        raise LimitValueError("give a limit, such as 50/s, or a weight, or both")
    definition = (values[name] for name in ("limits", "weight", "for"))
    plans = site.limiter.plans
    limits, _ = parse_definition(plans, ref, *definition)
    if limits is None or ref.key is not None:
        site.run(plans.check_known(ref))
    if limits is None:
        return Consequence("The limits do not change.")
    return Consequence("", site.run(preview_definition(site.observer, ref, limits)))


def _describe_definition(site: Site, ref: LimitRef) -> str:
    status = site.limiter[ref].status()
    return f"In force now: {clauses_text(status)}; weight {status.weight}."


def _define(site: Site, ref: LimitRef, values: Values, author: Author) -> None:
    plan = site.limiter.plans.define(
        ref, values["limits"], values["weight"], lasts=values["for"], author=author
    )
    site.run(plan)


def _preview_undefine(site: Site, ref: LimitRef, _: Values) -> Consequence:
    site.run(site.limiter.plans.check_known(ref))
    below = site.run(limits_below(site.observer, ref))
    return Consequence(below_text(below), site.run(preview_definition(site.observer, ref, below)))


def _undefine(site: Site, ref: LimitRef, _: Values, author: Author) -> None:
    site.run(site.limiter.plans.undefine(ref, author))


def _preview_reset(site: Site, ref: LimitRef, _: Values) -> Consequence:
    site.run(site.limiter.plans.check_known(ref))
    whole = ", but not those of its keys," if ref.key is None else ""
    text = (
        f"This forgets the units in use{whole} and lifts the pause: more can start in a window "
        f"than {ref_text(ref)} allows."
    )
    return Consequence(text, site.run(preview_reset(site.observer, ref)))


def _reset(site: Site, ref: LimitRef, _: Values, author: Author) -> None:
    site.run(site.limiter.plans.reset(ref, author))


_DEFINITION = (
    Field(
        "limits",
        "Limit",
        "one limit in each line, such as 50/s burst 20; all of them must allow a task",
        parse_limits,
        lines=3,
        default="no change",
    ),
    Field("weight", "Weight", "1 to 100", parse_weight, default="no change"),
    Field("for", "Duration", DURATION_HINT, parse_seconds, default="until undefine"),
)

#: Pause, resume, define, undefine and reset.
LIMIT_ACTIONS = (
    Action("pause", _preview_pause, _pause, (PAUSE_SECONDS,)),
    Action("resume", _preview_resume, _resume),
    Action("define", _preview_define, _define, _DEFINITION, describe=_describe_definition),
    Action(
        "undefine",
        _preview_undefine,
        _undefine,
        is_dangerous=True,
        describe=_describe_definition,
    ),
    Action("reset", _preview_reset, _reset, is_dangerous=True),
)
