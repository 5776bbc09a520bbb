"""Plans for rules files: put one in force, report that of a worker, read which is in force."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from celery_throttle.errors import RulesError
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import slots_error
from celery_throttle.limits.rules.dump import dump_rules
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import recheck_waiters
from celery_throttle.operations.lines import END
from celery_throttle.operations.plan import Plan, PlanContext
from celery_throttle.store import definitions
from celery_throttle.store.definitions import NO_DEFINITION, Definition
from celery_throttle.store.script import Argument, Call, script

#: Limits and weights that one call checks or changes at most; the server does nothing else
#: meanwhile.
PART_SIZE = 200

#: The reply that the rules in force are others.
_OTHER = 2

_WEIGHT_HEAD = "weight "


class _Row(NamedTuple):
    """A definition or a weight of a rules file, by its field; an empty one is to be removed."""

    field: str
    value: Definition | int

    @property
    def is_weight(self) -> bool:
        return isinstance(self.value, int)

    @property
    def stored(self) -> tuple[str, str]:
        """The field and the text that ``apply_rules.lua`` lists once the row is in force."""
        if isinstance(self.value, int):
            return f"{_WEIGHT_HEAD}{self.field}", str(self.value or "")
        return self.field, self.value.text

    @property
    def order(self) -> tuple[int, str]:
        """The place among rows that change; see :func:`_changed_rows`."""
        if self.is_weight:
            return 3, self.field
        return (1 if ":" not in self.field else 0 if self.value != NO_DEFINITION else 2), self.field


class _Look(NamedTuple):
    """What a look at the server has found; see ``apply_rules.lua``."""

    modified: int  #: when the file was modified, in microseconds by the server's clock
    version: str  #: stored of the file in force; empty if there is none
    next: str  #: stored of a file that is put in force now; empty if there is none

    def session(self, digest: str) -> str:
        """Return the session in which a file is put in force."""
        _, session, _, next_digest = self.next.split(" ", 3) if self.next else [""] * 4
        return session if next_digest == digest else uuid.uuid4().hex


class FileRules(NamedTuple):
    """Rules as they were read from a file.

    Attributes:
        rules: of the file.
        source: its path.
        modified: when it was modified, in microseconds since 1970.
    """

    rules: Rules
    source: str
    modified: int


@dataclass(frozen=True, slots=True)
class RulesVersion:
    """Which rules are in force on a server.

    Attributes:
        digest: of the rules; see :class:`~celery_throttle.limits.rules.rules.Rules`.
        source: path of the file.
        modified: when the file was modified, in microseconds since 1970.
        applied: the same, when it was put in force.
        author: who put it in force, and why.
    """

    digest: str
    source: str
    modified: int
    applied: int
    author: Author

    @classmethod
    def unpack(cls, packed: bytes) -> RulesVersion:
        """Return the version that is stored; see ``apply_rules.lua``."""
        modified, applied, text = packed.decode().split(" ", 2)
        about = json.loads(text)
        author = Author(about["by"], about["why"])
        return cls(about["digest"], about["source"], int(modified), int(applied), author)


class Applied(NamedTuple):
    """What became of a rules file.

    Attributes:
        accepted: whether its rules are in force; False if those in force are newer.
        modified: when the file was modified whose rules are in force, in microseconds since 1970.
    """

    accepted: bool
    modified: int


def apply_rules(
    context: PlanContext, file: FileRules, author: Author | None = None, *, is_new: bool = False
) -> Plan[Applied]:
    """Put the rules of a file in force, in place of those of the file before.

    Limits that were set at run time stay in force. The newest file wins: one that was modified
    earlier than the file in force changes nothing, unless it ``is_new``: then it counts as
    modified now, by the server's clock.

    Raises:
        RulesError: a limit would switch between a rate and slots. Nothing has changed.
    """
    author = author or author_of_file(file.source)
    rows = _rows_of(context, file.rules)
    digest, modified, is_again = file.rules.digest, 0 if is_new else file.modified, False
    while True:
        status, *found = yield _rules_call(context, "look", digest, modified, is_again=is_again)
        modified = int(found[0])
        if status != _OTHER:
            return Applied(bool(status), modified)
        look = _Look(modified, *(stored.decode() for stored in found[1:]))
        changed = yield from _changed_rows(context, file, rows)
        if (yield from _apply_rows(context, file, changed, look, author)):
            return Applied(accepted=True, modified=modified)
        is_again = True


def _rules_call(
    context: PlanContext,
    step: str,
    digest: str,
    modified: int = 0,
    rows: Sequence[_Row] = (),
    **fields: object,
) -> Call:
    """Return the call of a step of ``apply_rules.lua``, which describes the fields."""
    named = {"step": step, "digest": digest, "modified": modified, **fields}
    args: list[Argument] = [context.now(), json.dumps(named)]
    for row in rows:
        if isinstance(row.value, Definition):
            args += (row.field, *row.value)
    return Call(script("apply_rules"), context.keys.definitions, args)


def _rows_of(context: PlanContext, rules: Rules) -> list[_Row]:
    """Return the definitions and weights of rules."""
    keys, now = context.keys, context.local_time()
    limits = [
        _Row(keys.field(ref), definitions.pack(limits, now, keys.key_cap(ref.name)))
        for ref, limits in rules.limits.items()
    ]
    return [*limits, *(_Row(keys.field(ref), own) for ref, own in rules.weights.items())]


def _changed_rows(context: PlanContext, file: FileRules, rows: Sequence[_Row]) -> Plan[list[_Row]]:
    """Return the rows that differ from those in force; those to remove are empty.

    In their order each name and key has its limits of one of the two files at any time: a key
    gets limits of its own before its name changes, and loses them after that.
    """
    digest, stored, cursor = file.rules.digest, dict[str, str](), "0"
    while True:
        next_cursor, *found = yield _rules_call(context, "list", digest, cursor=cursor)
        pairs = zip(found[::2], found[1::2], strict=True)
        stored.update((field.decode(), text.decode()) for field, text in pairs)
        if next_cursor == END:
            break
        cursor = next_cursor.decode()
    wanted = dict(row.stored for row in rows)
    changed = [row for row in rows if stored.get(row.stored[0]) != row.stored[1]]
    for gone in stored.keys() - wanted.keys():
        field = gone.removeprefix(_WEIGHT_HEAD)
        changed.append(_Row(field, NO_DEFINITION if field == gone else 0))
    changed.sort(key=lambda row: row.order)
    for part in _parts(changed):
        status, *field = yield _rules_call(context, "check", digest, rows=part)
        if status < 0:
            raise _refusal(context, file, field[0].decode())
    return changed


def _apply_rows(
    context: PlanContext,
    file: FileRules,
    rows: Sequence[_Row],
    look: _Look,
    author: Author,
) -> Plan[bool]:
    """Put rows in force, part by part; False if another file has come between."""
    digest = file.rules.digest
    parts = list(_parts(rows)) or [()]
    named = {"session": look.session(digest), "about": author.pack()}
    for number, part in enumerate(parts, 1):
        more: dict[str, object] = {"seen": [look.version, look.next] if number == 1 else []}
        if number == len(parts):
            more |= {"version": _pack_version(file, author), "text": _pack_rules(file.rules)}
        weights = chain.from_iterable(row for row in part if row.is_weight)
        call = _rules_call(
            context, "apply", digest, look.modified, part, **named, **more, weights=[*weights]
        )
        status, *details = yield call
        if status < 0:
            raise _refusal(context, file, details[0].decode())
        if status == _OTHER:
            return False
        for name in details[1:]:
            yield from recheck_waiters(context, name.decode())
    return True


def _refusal(context: PlanContext, file: FileRules, field: str) -> RulesError:
    name, has_key, key = field.partition(":")
    ref = LimitRef(name, key if has_key else None)
    limits = file.rules.limits.get(ref, context.limits.get(name))
    return RulesError(file.source, [(None, str(slots_error(field, limits)))])


def report_rules(
    context: PlanContext, worker: str, report: str, known: str, lasts: float
) -> Plan[tuple[RulesVersion | None, Rules | None]]:
    """Record the rules file of a worker for some seconds; return which rules are in force.

    Args:
        context: what the plan uses.
        worker: its name in the membership.
        report: about its file; see :func:`pack_report`.
        known: the digest of the rules that the worker knows; empty for none.
        lasts: seconds for which the report counts; 0 if the worker ends.

    Returns:
        The version, or None; and the rules if the worker does not know them, else None.
    """
    keys = context.keys
    names = [keys.rules_files, keys.rules, keys.membership]
    args = [context.now(), worker, to_us(lasts), report, known]
    reply: Sequence[bytes] = yield Call(script("report_rules"), names, args)
    if not reply:
        return None, None
    version = RulesVersion.unpack(reply[0])
    rules = read_rules(reply[1].decode(), version.source) if len(reply) > 1 else None
    return version, rules


def pack_report(file: FileRules | None, path: str, error: str) -> str:
    """Return a worker's report about its rules file, as JSON.

    ``error``: why the present content of the file cannot be used; empty if it can.
    """
    digest, modified = (file.rules.digest, file.modified) if file else ("", None)
    return json.dumps({"digest": digest, "modified": modified, "path": path, "error": error})


def author_of_file(source: str, by: str | None = None, reason: str | None = None) -> Author:
    """Return the author of the changes that a rules file makes."""
    return Author.of(by, f"rules file {Path(source).name}" if reason is None else reason)


def _parts(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    return (rows[start : start + PART_SIZE] for start in range(0, len(rows), PART_SIZE))


def _pack_version(file: FileRules, author: Author) -> str:
    about = {"digest": file.rules.digest, "source": file.source}
    return json.dumps({**about, "by": author.by, "why": author.reason})


def _pack_rules(rules: Rules) -> str:
    return dump_rules(rules.limits, rules.weights, rules.routes)
