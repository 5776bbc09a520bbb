"""Plans for rules files: put one in force, report that of a worker, read which is in force."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from celery_throttle.errors import RulesError
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.requirement import slots_error
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Rules, dump_rules
from celery_throttle.limits.shards import OtherShardError
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import make_due
from celery_throttle.operations.lines import END
from celery_throttle.operations.plan import Plan, PlanContext, batches
from celery_throttle.store import definitions
from celery_throttle.store.definitions import NO_DEFINITION, Definition
from celery_throttle.store.script import Argument, Call

#: Limits and weights that one call checks or changes at most; the server does nothing else
#: meanwhile.
PART_SIZE = 200

#: The reply that the rules in force are others.
_OTHER = 2

#: What a weight is listed under: this and its field.
_WEIGHT_HEAD = "weight "

#: A definition and its field, or a weight and what it is listed under. An empty one is removed.
_Row = tuple[str, Definition | int]


class FileRules(NamedTuple):
    """Rules as they were read from a file."""

    rules: Rules  #: of the file
    source: str
    modified: int  #: when it was modified, in microseconds since 1970
    #: Those of its limits and weights that are in the shard where they are put in force; None: all.
    #: Each shard stores the text of the whole file.
    own: Rules | None = None

    @property
    def in_shard(self) -> Rules:
        """The limits and weights that are put in force."""
        return self.rules if self.own is None else self.own


@dataclass(frozen=True, slots=True)
class RulesVersion:
    """Which rules are in force on a server."""

    digest: str  #: of the rules; see :class:`~celery_throttle.limits.rules.rules.Rules`
    source: str  #: path of the file
    modified: int  #: when the file was modified, in microseconds since 1970
    applied: int  #: the same, when it was put in force
    author: Author  #: who put it in force, and why, if that says more than the source

    @classmethod
    def unpack(cls, packed: bytes) -> RulesVersion:
        """Return the version that is stored; see ``apply_rules.lua``."""
        modified, applied, text = packed.decode().split(" ", 2)
        about = json.loads(text)
        source, why = about["source"], about["why"]
        author = Author(about["by"], None if why == _reason_of_file(source) else why)
        return cls(about["digest"], source, int(modified), int(applied), author)


class Applied(NamedTuple):
    """What became of a rules file."""

    accepted: bool  #: whether its rules are in force; False if those in force are newer
    #: When the file was modified whose rules are in force, in microseconds since 1970.
    modified: int


def apply_rules(
    context: PlanContext, file: FileRules, author: Author | None = None, *, is_new: bool = False
) -> Plan[Applied]:
    """Put the rules of a file in force, in place of those of the file before.

    Limits that were set at run time stay in force. The newest file wins: one that was modified
    earlier than the file in force changes nothing, unless it ``is_new``: then it counts as
    modified now, by the server's clock.

    Raises:
        RulesError: a limit would switch between a rate and slots, or is in another shard. Nothing
            has changed.
    """
    author = author or author_of_file(file.source)
    rows = _rows_of(context, file.in_shard)
    modified, is_again = 0 if is_new else file.modified, False
    while True:
        call = _rules_call(context, "look", file.rules.digest, modified, is_again=is_again)
        status, *found = yield call
        modified = int(found[0])
        if status != _OTHER:
            return Applied(bool(status), modified)
        changed = yield from _changed_rows(context, file, rows)
        look = (modified, found[1].decode(), found[2].decode())
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
    args: list[Argument] = [json.dumps(named)]
    for field, value in rows:
        if isinstance(value, Definition):
            args += (field, *value)
    return context.call("apply_rules", context.keys.definition_change, *args)


def _rows_of(context: PlanContext, rules: Rules) -> dict[str, Definition | int]:
    """Return the definitions and weights of rules, by what they are listed under."""
    keys, now = context.keys, context.local_time()
    limits = {
        keys.field(ref): definitions.pack(limits, now, keys.key_cap(ref.name))
        for ref, limits in rules.limits.items()
    }
    weights = {f"{_WEIGHT_HEAD}{keys.field(ref)}": own for ref, own in rules.weights.items()}
    return {**limits, **weights}


def _changed_rows(
    context: PlanContext, file: FileRules, rows: Mapping[str, Definition | int]
) -> Plan[list[_Row]]:
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
    gone = stored.keys() - rows.keys()
    empty = {one: 0 if one.startswith(_WEIGHT_HEAD) else NO_DEFINITION for one in gone}
    wanted: dict[str, Definition | int] = {**rows, **empty}
    changed = [row for row in wanted.items() if stored.get(row[0]) != _text_of(row[1])]
    changed.sort(key=_order)
    for part in batches(changed, PART_SIZE):
        epoch = yield from context.assigned_epoch(_names_of(part))
        status, *details = yield _rules_call(context, "check", digest, rows=part, epoch=epoch)
        if status < 0:
            raise _refusal(context, file, *details)
    return changed


def _text_of(value: Definition | int) -> str:
    """Return the text that ``apply_rules.lua`` lists for a row once it is in force."""
    return value.text if isinstance(value, Definition) else str(value or "")


def _order(row: _Row) -> tuple[int, str]:
    """Return the place of a row among those that change; see :func:`_changed_rows`."""
    field, value = row
    if not isinstance(value, Definition):
        return 3, field
    return (1 if ":" not in field else 0 if value != NO_DEFINITION else 2), field


def _apply_rows(
    context: PlanContext,
    file: FileRules,
    rows: Sequence[_Row],
    look: tuple[int, str, str],
    author: Author,
) -> Plan[bool]:
    """Put rows in force, part by part; False if another file has come between.

    ``look``: what a look at the server has found; see ``apply_rules.lua``.
    """
    digest, rules, (modified, *seen) = file.rules.digest, file.rules, look
    _, session, _, next_digest = seen[1].split(" ", 3) if seen[1] else [""] * 4
    session = session if next_digest == digest else uuid.uuid4().hex
    parts = list(batches(rows, PART_SIZE)) or [()]
    for number, part in enumerate(parts, 1):
        fields: dict[str, object] = {"session": session, "about": author.pack()}
        fields["seen"] = seen if number == 1 else []
        if number == len(parts):
            about = {"digest": digest, "source": file.source}
            fields["version"] = json.dumps({**about, "by": author.by, "why": author.reason})
            fields["text"] = dump_rules(rules.limits, rules.weights, rules.routes)
        fields["weights"] = [
            item
            for field, own in part
            if isinstance(own, int)
            for item in (field.removeprefix(_WEIGHT_HEAD), own)
        ]
        fields["epoch"] = yield from context.assigned_epoch(_names_of(part))
        status, *details = yield _rules_call(context, "apply", digest, modified, part, **fields)
        if status < 0:
            raise _refusal(context, file, *details)
        if status == _OTHER:
            return False
        for name in details[1:]:
            yield from make_due(context, name.decode())
    return True


def _names_of(rows: Sequence[_Row]) -> dict[str, None]:
    """Return the names of the limits that rows define, or of whose keys they define."""
    fields = (field for field, value in rows if value != NO_DEFINITION)
    return {field.partition(":")[0]: None for field in fields if " " not in field}


def _refusal(
    context: PlanContext, file: FileRules, field: bytes, shard: bytes | None = None
) -> RulesError:
    ref = context.keys.field_ref(field.decode())
    if shard is not None:
        error: Exception = OtherShardError(ref.name, shard.decode())
    else:
        limits = file.rules.limits.get(ref, context.limits.get(ref.name))
        error = slots_error(field.decode(), limits)
    return RulesError(file.source, [(None, str(error))])


def report_rules(
    context: PlanContext, worker: str, report: str, known: str, lasts: float
) -> Plan[tuple[RulesVersion | None, Rules | None]]:
    """Record the rules file of a worker; return the version in force, or None, and its rules.

    The rules are None if the worker knows them, by their digest ``known``, empty for none.
    ``report``: see :func:`pack_report`. ``lasts``: seconds for which it counts; 0 if the worker
    ends.
    """
    keys = context.keys
    names = [keys.rules_files, keys.rules, keys.membership]
    args = worker, to_us(lasts), report, known
    reply: Sequence[bytes] = yield context.call("report_rules", names, *args)
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
    return Author.of(by, _reason_of_file(source) if reason is None else reason)


def _reason_of_file(source: str) -> str:
    return f"rules file {Path(source).name}"
