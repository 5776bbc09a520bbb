"""The catalogue of all keys and channels: type, content, expiry and writers of each kind.

``docs/reference/redis-keys.md`` is generated from it. The tests check that every key that they find
on a server is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import FAN_OUT_NAME, Keys


class Expiry(Enum):
    """Whether keys of a kind expire; the values are for the documentation."""

    NEVER = "never"
    WITH_LAST_TASK = "never; deleted with the last task"
    WHILE_IDLE = "not while tasks wait or are claimed"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class KeyKind:
    """One kind of key, or a channel.

    Attributes:
        pattern: the name. ``<limit>`` and the like stand for text, ``[...]`` is optional.
        type: as Redis names it: ``string``, ``hash``, ``list``, ``set``, ``zset``, ``stream``; or
            ``channel``.
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
_FAN_OUT_PAUSE = LimitRef(FAN_OUT_NAME, "<fan-out>")

#: Groups of scripts that write many kinds of keys.
SCRIPT_GROUPS: Mapping[str, str] = {
    "decision scripts": (
        "acquire, admit, apply_rules, broker_wait, claim, define, learn, park, settle_reservation"
    ),
    "line scripts": (
        "cancel, claim, discard, enlist, park, recall_quarantined, requeue, withdraw, "
        "withdraw_lines"
    ),
    "definition scripts": "apply_rules, define, enter, leave, set_weight",
    "pause scripts": "enter, leave, learn, pause, pause_for_slots, reset, resume",
    "fan-out scripts": (
        "cancel, claim, discard, enlist, list_results, pause, "
        "recall_quarantined, record_outcomes, requeue, resume, withdraw, withdraw_lines"
    ),
}
_DECIDE = SCRIPT_GROUPS["decision scripts"]
_CHANGE_LINES = SCRIPT_GROUPS["line scripts"]
_DEFINE = SCRIPT_GROUPS["definition scripts"]
_PAUSE = SCRIPT_GROUPS["pause scripts"]
_FAN_OUTS = SCRIPT_GROUPS["fan-out scripts"]

#: All kinds of keys, by the part of the documentation that lists them.
SECTIONS: Mapping[str, tuple[KeyKind, ...]] = {
    "Definitions and changes": (
        *_kinds(
            Expiry.NEVER,
            "",
            _DEFINE,
            (_KEYS.limits, "hash", "definitions of limits and keys, of all layers; weights"),
            (_KEYS.rules, "hash", "the rules file in force"),
            (_KEYS.names, "set", "names of all defined limits"),
            (
                _KEYS.own_keys("<limit>"),
                "zset",
                "keys with their own definition or weight, by when (us) one ends",
            ),
        ),
        KeyKind(
            _KEYS.shards,
            "hash",
            "limits that are in other shards, or in this one of several, each with an epoch; of "
            "those that move, what was there, and since when (us) their units count as in use",
            Expiry.NEVER,
            "",
            "apply_rules, assign, define, enter, leave",
        ),
        *_kinds(
            Expiry.ALWAYS,
            "a year after the last change",
            f"{_DEFINE}, {_PAUSE}, note_change".replace("learn, ", ""),
            (_KEYS.changes, "stream", "change log: the last 1,000 changes"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "when the last report of a worker expires",
            "report_rules",
            (
                _KEYS.rules_files,
                "hash",
                "rules file of each live worker, as JSON, and the time until which it is valid",
            ),
        ),
    ),
    "State of limits": (
        *_kinds(
            Expiry.ALWAYS,
            "when no unit of the limit is in use",
            f"{_DECIDE}, quarantine, renew, requeue, reset",
            (_KEYS.state(_REF), "string", "packed state of the algorithms"),
            (f"{_KEYS.state(_REF)}+shadow", "string", "packed state of the shadow limits"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "one period after the last admission",
            f"{_DECIDE}, quarantine, requeue",
            (f"{_KEYS.entries(_REF)}+<n>", "zset", "log of the n-th limit: admissions by time"),
            (
                f"{_KEYS.entries(_REF)}+shadow<n>",
                "zset",
                "log of the n-th shadow limit: admissions by time",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "with the last lease",
            f"{_DECIDE}, quarantine, release, renew, requeue",
            (_KEYS.entries(_REF), "zset", "holders of slots, by the end of the lease"),
        ),
        *_kinds(
            Expiry.WHILE_IDLE,
            "then when no key is in use",
            f"{_DECIDE}, {_CHANGE_LINES}, quarantine, renew, reset",
            (
                _KEYS.key_cap("<limit>"),
                "zset",
                "keys in use (`max-keys`), by the end of use plus 2^53 for each line of the key",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "at the last return time",
            "broker_wait",
            (
                _KEYS.return_times(_REF),
                "string",
                "return times of tasks that wait at the broker (`throttle_waiting`)",
            ),
        ),
    ),
    "Pauses": (
        *_kinds(
            Expiry.ALWAYS,
            "when the pause ends",
            _PAUSE,
            (_KEYS.pause(_REF), "string", "end of the pause, and the time at which it was written"),
            (_KEYS.pause_origin(_REF), "string", "time, author and reason of the pause"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "when the last of these pauses ends",
            _PAUSE,
            (_KEYS.paused_keys("<limit>"), "zset", "paused keys, by the end of the pause"),
        ),
    ),
    "Refusals": (
        *_kinds(
            Expiry.ALWAYS,
            "when an API accepts a request, or a minute after the last pause",
            "learn",
            (_KEYS.refusals(_REF), "string", "refusals in a row: the last pause, and its time"),
        ),
    ),
    "Counters": (
        *_kinds(
            Expiry.ALWAYS,
            "eight days after the last count",
            "acquire, admit, broker_wait, cancel, claim, discard, enlist, learn, park, "
            "quarantine, requeue, settle_reservation, withdraw",
            (
                _KEYS.totals("<limit>"),
                "hash",
                "totals: counters of requests and tasks, and the last 429",
            ),
        ),
        *_kinds(
            Expiry.WHILE_IDLE,
            "deleted with the last task",
            _CHANGE_LINES,
            (f"{_KEYS.totals('<limit>')}/keys", "zset", "number of waiting tasks of each key"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "20 minutes after the last record",
            "record_totals",
            (_KEYS.records("<limit>", "recent"), "list", "the totals, recorded every ten seconds"),
            (_KEYS.recorded, "string", "times of the last two records"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "eight days after the last record",
            "record_totals",
            (_KEYS.records("<limit>", "week"), "list", "the totals, recorded every ten minutes"),
        ),
    ),
    "Lines": (
        *_kinds(
            Expiry.WITH_LAST_TASK,
            "",
            _CHANGE_LINES,
            (_QUEUE.messages, "hash", "packed messages of the waiting tasks, by task id"),
        ),
        *_kinds(
            Expiry.WHILE_IDLE,
            "deleted with the last task",
            _CHANGE_LINES,
            (
                _LINE,
                "zset",
                "line: task ids by priority and age; the digest identifies queue, limits and keys",
            ),
            (_QUEUE.lines, "hash", "packed descriptors of the lines"),
            (
                _KEYS.waiting_list("<queue>", _REF),
                "zset",
                "waiting list: lines that wait at the limit, by rank and virtual time",
            ),
            (
                _KEYS.surplus("<queue>", (), "")[1],
                "zset",
                "waiting list of the tasks that end as revoked (`throttle_keep_waiting`)",
            ),
            (
                _KEYS.waiting_lists(_REF),
                "hash",
                "waiting lists of the limit, with the packed names of the keys of their queues",
            ),
            (
                _KEYS.waiting_list_index("<limit>"),
                "set",
                "names of the `waiting-lists` keys of the limit and of all its keys",
            ),
            (_KEYS.backlog(_REF), "string", "number of waiting tasks in all queues"),
        ),
        *_kinds(
            Expiry.WHILE_IDLE,
            "deleted with the last task",
            f"{_CHANGE_LINES}, quarantine, make_due, release, reset, resume, settle_reservation",
            (
                _QUEUE.due,
                "zset",
                "due times: waiting lists, by the time at which their limit next has room",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "an hour after the last poll; 2 s if no task waits",
            "claim",
            (_QUEUE.polls, "zset", "wake-up channels of workers, by the time of the next poll"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "a day after a task was last parked",
            "claim, park",
            (
                _KEYS.unacknowledged,
                "zset",
                "parked messages that the broker may still deliver again, by time",
            ),
        ),
    ),
    "Claims and workers": (
        *_kinds(
            Expiry.WITH_LAST_TASK,
            "what cannot be read of a dead worker: eight days after its death is found",
            "claim, quarantine, requeue, withdraw, withdraw_lines, withdraw_quarantined",
            (_KEYS.claims("<worker>"), "hash", "packed claimed tasks of a worker, by token"),
        ),
        *_kinds(
            Expiry.WHILE_IDLE,
            "deleted with the last claim",
            "claim, quarantine, requeue, withdraw, withdraw_lines, withdraw_quarantined",
            (_KEYS.workers, "zset", "workers that have claims, by the end of the lease"),
        ),
        *_kinds(
            Expiry.WITH_LAST_TASK,
            "",
            "quarantine, recall_quarantined, withdraw_quarantined",
            (_KEYS.quarantine, "hash", "packed tasks in quarantine, by task id"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "eight days after the last outage",
            "count_outage",
            (
                _KEYS.outages,
                "string",
                "microseconds that workers spent in outage mode, summed over workers",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "ten minutes after the last such start",
            "note_ungated",
            (
                _KEYS.ungated,
                "zset",
                "tasks with limits whose starts do not pass the gate, by time",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "when the last heartbeat expires",
            "heartbeat",
            (_KEYS.membership, "zset", "live workers, by the end of the heartbeat"),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "a day after the last heartbeat",
            "heartbeat",
            (
                _KEYS.consumed_queues,
                "zset",
                "queues with tasks, by the time at which a worker last consumed them",
            ),
        ),
        *_kinds(
            Expiry.WHILE_IDLE,
            "deleted with the last task",
            f"{_CHANGE_LINES}, heartbeat",
            (
                _KEYS.temporary_queues,
                "zset",
                "the same, for queues that the broker deletes with their last consumer",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "ten leases after the last heartbeat",
            "heartbeat",
            (
                _KEYS.worker_queues,
                "zset",
                "all queues of live workers, by the time at which a worker last consumed them",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "a day after the last heartbeat",
            "heartbeat",
            (
                _KEYS.limits_with_keys,
                "zset",
                "limits of which tasks need keys, by the time at which a worker last reported them",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "when another process may do the work",
            "begin_once",
            (
                _KEYS.once("<work>"),
                "string",
                "time at which a process began work that it does for all processes",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "after one second",
            "missing_rights",
            (
                _KEYS.permission_probe,
                "string",
                "exists while a worker tests the rights of its user",
            ),
        ),
    ),
    "Fan-outs": (
        *_kinds(
            Expiry.WHILE_IDLE,
            "then `keep` seconds (default: a day) after the last task has left its line",
            _FAN_OUTS,
            (_FAN_OUT, "hash", "record of a fan-out: counts of tasks, settings"),
            (f"{_FAN_OUT}:queues", "hash", "queues by number, and numbers by queue"),
            (
                f"{_FAN_OUT}:<n>",
                "hash",
                (
                    "outcome of each task, or the number of its queue; after `-` if it ignores its "
                    "result; n is 0 to 63"
                ),
            ),
            (f"{_FAN_OUT}:ended", "list", "ids of the ended tasks, in the order of their ends"),
            (
                _KEYS.pause(_FAN_OUT_PAUSE),
                "string",
                "end of the pause of the fan-out, and the time at which it was written",
            ),
            (
                _KEYS.pause_origin(_FAN_OUT_PAUSE),
                "string",
                "time, author and reason of the pause",
            ),
        ),
        *_kinds(
            Expiry.WHILE_IDLE,
            "deleted with the last task",
            _CHANGE_LINES,
            (
                _KEYS.waiting_list("<queue>", _FAN_OUT_PAUSE),
                "zset",
                "lines of the paused fan-out, as in a waiting list of a limit",
            ),
            (
                _KEYS.waiting_lists(_FAN_OUT_PAUSE),
                "hash",
                "waiting lists of the fan-out, with the packed names of the keys of their queues",
            ),
            (
                _KEYS.waiting_list_index(FAN_OUT_NAME),
                "set",
                "names of the `waiting-lists` keys of all paused fan-outs",
            ),
            (
                _KEYS.backlog(_FAN_OUT_PAUSE),
                "string",
                "number of tasks that wait for the end of the pause",
            ),
        ),
        *_kinds(
            Expiry.ALWAYS,
            "a year after the last fan-out began",
            "enlist",
            (
                _KEYS.fan_outs,
                "zset",
                "records of fan-outs, by the time at which each was last seen",
            ),
        ),
    ),
    "Channels": _kinds(
        Expiry.ALWAYS,
        "never stored",
        "claim, enlist, missing_rights, park, quarantine, recall_quarantined, make_due, "
        "release, requeue, reset, resume, settle_reservation",
        (_KEYS.wakeup_channel("<worker>"), "channel", "empty messages that make a worker poll"),
    ),
}

KEY_KINDS: tuple[KeyKind, ...] = tuple(kind for kinds in SECTIONS.values() for kind in kinds)
