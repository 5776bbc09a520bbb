"""Plans for rules files: put one in force, report that of a worker, read which is in force."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from celery_throttle.errors import RulesError
from celery_throttle.limits.author import Author
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import slots_error
from celery_throttle.operations.define import DefinePlans
from celery_throttle.operations.plan import Plan
from celery_throttle.rules.dump import dump_rules, sort_refs
from celery_throttle.rules.reader import read_rules
from celery_throttle.rules.rules import Rules
from celery_throttle.store import definitions
from celery_throttle.store.script import Argument, Call, script

#: With a field or a name behind it, a head of the names of keys.
_HEAD = LimitRef("", None)


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
        digest: of the rules; see :class:`~celery_throttle.rules.rules.Rules`.
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
        """Return the version in the field ``rules`` of the layers; see ``apply_rules.lua``."""
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


class RulesPlans(DefinePlans):
    """Plans for rules files."""

    __slots__ = ()

    def apply_rules(
        self, file: FileRules, author: Author | None = None, *, is_new: bool = False
    ) -> Plan[Applied]:
        """Put the rules of a file in force, in place of those of the file before.

        Limits that were set at run time stay in force. The newest file wins: one that was modified
        earlier than the file in force changes nothing, unless it ``is_new``: then it counts as
        modified now, by the server's clock.

        Raises:
            RulesError: a limit would switch between a rate and slots. Nothing has changed.
        """
        keys, rules, now = self.keys, file.rules, self.local_time()
        author = author or author_of_file(file.source)
        modified = "" if is_new else file.modified
        args: list[Argument] = [self.now(), modified, author.pack(), rules.digest]
        args += [_pack_version(file, author), _pack_rules(rules), len(rules.limits)]
        for ref in sort_refs(rules.limits):
            packed = definitions.pack(rules.limits[ref], now, keys.key_cap(ref.name))
            args += (keys.field(ref), packed)
        for ref in sort_refs(rules.weights):
            args += (keys.field(ref), rules.weights[ref])
        names = [keys.limits, keys.layers, keys.names, keys.changes]
        heads = [keys.state(_HEAD), keys.entries(_HEAD), keys.own_keys("")]
        reply = yield Call(script("apply_rules"), [*names, *heads], args)
        status, subject, *changed = reply
        if status < 0:
            raise self._refusal(file, subject.decode())
        for name in changed:
            yield from self._recheck_waiters(name.decode())
        return Applied(bool(status), int(subject))

    def _refusal(self, file: FileRules, field: str) -> RulesError:
        name, has_key, key = field.partition(":")
        ref = LimitRef(name, key if has_key else None)
        limits = file.rules.limits.get(ref, self.limits.get(name))
        return RulesError(file.source, [(None, str(slots_error(field, limits)))])

    def report_rules(
        self, worker: str, report: str, known: str, lasts: float
    ) -> Plan[tuple[RulesVersion | None, Rules | None]]:
        """Record the rules file of a worker for some seconds; return which rules are in force.

        Args:
            worker: its name in the membership.
            report: about its file; see :func:`pack_report`.
            known: the digest of the rules that the worker knows; empty for none.
            lasts: seconds for which the report counts; 0 if the worker ends.

        Returns:
            The version, or None; and the rules if the worker does not know them, else None.
        """
        keys = self.keys
        names = [keys.rules_files, keys.layers, keys.membership]
        args = [self.now(), worker, to_us(lasts), report, known]
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


def _pack_version(file: FileRules, author: Author) -> str:
    about = {"digest": file.rules.digest, "source": file.source}
    return json.dumps({**about, "by": author.by, "why": author.reason})


def _pack_rules(rules: Rules) -> str:
    return dump_rules(rules.limits, rules.weights, rules.routes)
