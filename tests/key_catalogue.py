"""The catalogue of all keys and channels: type, content, expiry and writers of each kind.

``docs/reference/redis-keys.md`` is generated from it. The tests check that every key that they find
on a server is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import FAN_OUT_LIMIT, Keys


class Expiry(Enum):
    """Whether keys of a kind expire; the values are for the documentation."""

    NEVER = "none"
    WITH_LAST_TASK = "none; deleted with its last task"
    WHILE_IDLE = "none while tasks wait or are claimed"
    ALWAYS = "always expires"


@dataclass(frozen=True, slots=True)
class KeyKind:
    """One kind of key, or a channel.

    Attributes:
        pattern: the name. ``<limit>`` and the like stand for text, ``[...]`` is optional.
        type: as Redis names it: ``string``, ``hash``, ``list``, ``set``, ``zset``; or ``channel``.
        content: what it holds.
        expiry: whether it expires.
        lifetime: when it expires, or what deletes it.
        writers: the scripts that create, change or delete it, separated by commas. For a fan-out:
            any of its keys.
    """

    pattern: str
    type: str
    content: str
    expiry: Expiry
    lifetime: str
    writers: str


def _kinds(
    expiry: Expiry, lifetime: str, writers: str, *kinds: tuple[str, str, str]
) -> tuple[KeyKind, ...]:
    """Return kinds that have the same lifetime and writers, from pattern, type and content."""
    return tuple(KeyKind(*kind, expiry, lifetime, writers) for kind in kinds)


_KEYS = Keys()
_REF = LimitRef("<limit>[:<key>]", None)
_QUEUE = _KEYS.queue("<queue>")
_LINE = _KEYS.line("", ()).rpartition(":")[0] + ":<digest>"
_FAN_OUT = _KEYS.fan_out("NAME").replace("NAME", "<fan-out>")
_FAN_OUT_LIMIT = LimitRef(FAN_OUT_LIMIT, "<fan-out>")

# Scripts that decide over limits, that change lines, and that record how tasks of fan-outs end.
_DECIDE = "acquire, admit, apply_rules, broker_wait, claim, define, learn, park, settle"
_CHANGE_LINES = (
    "cancel, claim, discard, enlist, park, recall_quarantined, requeue, withdraw, withdraw_lines"
)
_RECORD_ENDS = "cancel, discard, discard_quarantined, recall_quarantined, record_outcomes, requeue"

KEY_KINDS: tuple[KeyKind, ...] = (
    *_kinds(
        Expiry.NEVER,
        "one key for all limits",
        "apply_rules, define, set_weight",
        (_KEYS.limits, "hash", "definitions in force of limits and of their keys; weights"),
        (_KEYS.layers, "hash", "definitions and weights of the code; the rules file"),
        (_KEYS.names, "set", "names of limits that are defined"),
        (_KEYS.own_keys("<limit>"), "zset", "keys with their own definition or weight"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "when nothing of the limit is in use",
        f"{_DECIDE}, renew, reset",
        (_KEYS.state(_REF), "string", "state of the algorithms, packed"),
        (f"{_KEYS.state(_REF)}+shadow", "string", "the same of shadow limits"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "eight days after the last record",
        "acquire, admit, broker_wait, cancel, claim, discard, enlist, learn, park, requeue, "
        "settle, withdraw",
        (_KEYS.totals("<limit>"), "hash", "what became of requests and tasks, counted"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "20 minutes after the last record",
        "record_totals",
        (_KEYS.records("<limit>", "recent"), "list", "the totals every ten seconds"),
        (_KEYS.recorded, "string", "when totals were recorded last, and before that (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "eight days after the last record",
        "record_totals",
        (_KEYS.records("<limit>", "week"), "list", "the totals every ten minutes"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "when others may do it again",
        "begin_once",
        (_KEYS.once("<what>"), "string", "when somebody began what one is enough for (us)"),
    ),
    *_kinds(
        Expiry.WHILE_IDLE,
        "deleted with the last task",
        _CHANGE_LINES,
        (f"{_KEYS.totals('<limit>')}/keys", "zset", "keys with waiting tasks, and how many wait"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "with the last lease",
        f"{_DECIDE}, quarantine, release, renew, requeue",
        (_KEYS.entries(_REF), "zset", "slots in use: holder, by the end of its lease (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "one period after the last admission",
        _DECIDE,
        (f"{_KEYS.entries(_REF)}+<n>", "zset", "admissions of the n-th limit, by time (us)"),
        (f"{_KEYS.entries(_REF)}+shadow<n>", "zset", "the same of the n-th shadow limit"),
    ),
    *_kinds(
        Expiry.WHILE_IDLE,
        "else when no key is in use any more",
        f"{_DECIDE}, cancel, discard, enlist, recall_quarantined, renew, requeue, reset, withdraw, "
        "withdraw_lines",
        (_KEYS.key_cap("<limit>"), "zset", "keys in use: until when (us), and 2^53 for each line"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "when the pause ends",
        "learn, pause, reset, resume",
        (_KEYS.pause(_REF), "string", "end of the pause, and when that was written (us)"),
        (_KEYS.pause_origin(_REF), "string", "when the pause was made (us), by whom, and why"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "when the last of these pauses ends",
        "learn, pause, reset, resume",
        (_KEYS.paused_keys("<limit>"), "zset", "paused keys, by the end of their pauses (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "a year after the last change",
        "apply_rules, define, note_change, pause, reset, resume, set_weight",
        (_KEYS.changes, "stream", "the last 1,000 changes"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "at the last return time",
        "broker_wait",
        (_KEYS.broker_waits(_REF), "string", "return times of tasks that wait at the broker"),
    ),
    *_kinds(
        Expiry.WITH_LAST_TASK,
        "",
        _CHANGE_LINES,
        (_QUEUE.messages, "hash", "messages, packed, by task id"),
    ),
    *_kinds(
        Expiry.WHILE_IDLE,
        "deleted with the last task",
        _CHANGE_LINES,
        (_LINE, "zset", "line: task ids by priority and age; the digest is of queue and limits"),
        (_QUEUE.lines, "hash", "descriptors, packed, by line"),
        (_KEYS.waiting_list("<queue>", _REF), "zset", "lines that wait, by rank and virtual time"),
        (_KEYS.waiting_lists(_REF), "hash", "keys of the queue, packed, by waiting list"),
        (_KEYS.waiting_list_index("<limit>"), "set", "the `waits` of the limit and of its keys"),
        (_KEYS.backlog(_REF), "string", "number of waiting tasks, of all queues"),
    ),
    *_kinds(
        Expiry.WHILE_IDLE,
        "deleted with the last task",
        f"{_CHANGE_LINES}, quarantine, recheck_waiters, release, reset, resume, settle",
        (_QUEUE.due, "zset", "waiting lists, by when their limit next has room (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "an hour after the last poll; 2 s if no task waits",
        "claim",
        (_QUEUE.polls, "zset", "wake-up channels of workers, by when they poll next (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "a day after the last heartbeat",
        "discard, heartbeat",
        (_KEYS.consumed_queues, "zset", "queues with tasks, by when a worker last consumed (us)"),
    ),
    *_kinds(
        Expiry.WHILE_IDLE,
        "deleted with the last task",
        f"{_CHANGE_LINES}, heartbeat",
        (_KEYS.temporary_queues, "zset", "the same of queues that end with their last consumer"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "a day after a task was last parked",
        "claim, park",
        (_KEYS.unacknowledged, "zset", "parked messages not acknowledged yet, by time (us)"),
    ),
    *_kinds(
        Expiry.WITH_LAST_TASK,
        "",
        "claim, quarantine, requeue, withdraw, withdraw_lines, withdraw_quarantined",
        (_KEYS.claims("<worker>"), "hash", "claimed tasks, packed, by token"),
    ),
    *_kinds(
        Expiry.WHILE_IDLE,
        "deleted with the last claim",
        "claim, quarantine, requeue, withdraw, withdraw_lines, withdraw_quarantined",
        (_KEYS.workers, "zset", "workers with claims, by the end of their lease (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "when the last worker counts as dead",
        "heartbeat",
        (_KEYS.membership, "zset", "live workers, by when their heartbeat expires (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "when the last report of a worker expires",
        "report_rules",
        (_KEYS.rules_files, "hash", "rules files of live workers: until when (us), and JSON"),
    ),
    *_kinds(
        Expiry.WITH_LAST_TASK,
        "",
        "discard_quarantined, quarantine, recall_quarantined, withdraw_quarantined",
        (_KEYS.quarantine, "hash", "tasks that no live worker has code for, packed, by task id"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "after one second",
        "missing_rights",
        (_KEYS.permission_probe, "string", "exists while a worker tests its user's rights"),
    ),
    *_kinds(
        Expiry.WHILE_IDLE,
        "else `keep` seconds (a day) after the last task has left its line",
        f"{_RECORD_ENDS}, claim, enlist, list_results, pause, resume, withdraw, withdraw_lines",
        (_FAN_OUT, "hash", "record of a fan-out: counts of tasks, settings"),
        (f"{_FAN_OUT}:queues", "hash", "queues by number, and the numbers by queue"),
        (f"{_FAN_OUT}:<n>", "hash", "how each of its tasks ended, or its queue; n is 0 to 63"),
        (f"{_FAN_OUT}:ended", "list", "ids of the ended tasks, in the order of their ends"),
        (_KEYS.pause(_FAN_OUT_LIMIT), "string", "pause of a fan-out, at most for as long"),
        (_KEYS.pause_origin(_FAN_OUT_LIMIT), "string", "when it was paused (us), by whom, and why"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "a year after the last fan-out began",
        "enlist",
        (_KEYS.fan_outs, "zset", "records of fan-outs, by when each was last found (us)"),
    ),
    *_kinds(
        Expiry.ALWAYS,
        "holds nothing",
        "claim, enlist, missing_rights, park, quarantine, recall_quarantined, recheck_waiters, "
        "release, requeue, reset, resume, settle",
        (_KEYS.wakeup_channel("<worker>"), "channel", "empty messages that let a worker poll"),
    ),
)
