"""Plans that read definitions: all that are in force, and what would follow one of run time."""

from __future__ import annotations

from collections.abc import Sequence

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.stored import list_keys, read_names, read_stored
from celery_throttle.operations.define import read_definitions
from celery_throttle.operations.plan import Plan
from celery_throttle.store import definitions
from celery_throttle.store.script import Call, script

#: Keys, or definitions, that one call reads.
_PAGE_SIZE = 1000


def definitions_in_force(
    observer: Observer,
) -> Plan[tuple[dict[LimitRef, Sequence[Limit]], dict[LimitRef, int]]]:
    """Return the limits, and the weights other than the default, of all names and keys."""
    limits: dict[LimitRef, Sequence[Limit]] = {}
    weights: dict[LimitRef, int] = {}
    for name in (yield from read_names(observer)):
        whole = LimitRef(name, None)
        refs = [whole, *(yield from own_refs(observer, name))]
        statuses = yield from read_stored(observer, refs)
        own = yield from own_definitions(observer, refs)
        limits.update({whole: observer.limits[name]} if name in observer.limits else {})
        limits.update(own)
        for ref, status in zip(refs, statuses, strict=True):
            default = 1 if ref == whole else statuses[0].weight
            if status.weight != default:
                weights[ref] = status.weight
    return limits, weights


def own_definitions(
    observer: Observer, refs: Sequence[LimitRef]
) -> Plan[dict[LimitRef, Sequence[Limit]]]:
    """Return the limits in force of those names and keys that have their own."""
    found: dict[LimitRef, Sequence[Limit]] = {}
    for start in range(0, len(refs), _PAGE_SIZE):
        page = refs[start : start + _PAGE_SIZE]
        texts = yield from read_definitions(observer, map(observer.keys.field, page))
        found |= {
            ref: definitions.unpack(text) for ref, text in zip(page, texts, strict=True) if text
        }
    return found


def limits_below(observer: Observer, ref: LimitRef) -> Plan[Sequence[Limit]]:
    """Return what is in force after ``undefine``; nothing if nothing is.

    For a key, that is the definition of its name if neither the rules file nor the code has one
    for the key.
    """
    rules, code = yield _layers_call(observer, ref)
    (status,) = yield from read_stored(observer, [ref])
    if status.origin is not None and status.origin.layer == "code" and status.weight == 1:
        code = None  # what the code of this process does not have is removed
    return (yield from _unpack_or_default(observer, rules or code, ref))


def limits_below_rules(observer: Observer, ref: LimitRef) -> Plan[Sequence[Limit] | None]:
    """Return what is in force if the rules file no longer defines a limit or key.

    None: what it has defined has no effect, as a definition of run time is in force.
    """
    (status,) = yield from read_stored(observer, [ref])
    if status.origin is not None and status.origin.layer == "run time":
        return None
    _, code = yield _layers_call(observer, ref)
    return (yield from _unpack_or_default(observer, code, ref))


def _layers_call(observer: Observer, ref: LimitRef) -> Call:
    args = [observer.now(), observer.keys.field(ref)]
    return Call(script("read_layers"), [observer.keys.limits], args)


def _unpack_or_default(
    observer: Observer, packed: bytes | None, ref: LimitRef
) -> Plan[Sequence[Limit]]:
    """Return the limits of a definition; without one, those of the code or of the name."""
    if packed:
        return definitions.unpack(packed)
    if ref.key is None:
        return observer.limits.get(ref.name, ())
    name = LimitRef(ref.name, None)
    return (yield from own_definitions(observer, [name])).get(name, ())


def own_refs(observer: Observer, name: str) -> Plan[list[LimitRef]]:
    """Return the keys of a limit that have their own definition or weight."""
    refs: list[LimitRef] = []
    while True:
        args = name, "own", len(refs), _PAGE_SIZE
        total, found = yield from list_keys(observer, *args)
        refs += [LimitRef(name, key) for key, _ in found]
        if not found or len(refs) >= total:
            return refs
