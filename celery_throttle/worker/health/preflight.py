"""Checks before a worker starts: can its server keep its tasks, and has the user all rights?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError
from celery_throttle.store.script import Call, script

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

logger = get_logger(__name__)


def check_store(throttle: Throttle) -> None:
    """Warn of a server that may lose or evict tasks, or refuse it, as ``throttle_checks`` says.

    A right that is missing is logged as an error: scripts end where they come to it.

    Raises:
        ConfigurationError: it is refused; the message names what to set.
    """
    checks, store = throttle.settings.checks, throttle.store
    if checks == "off":
        return
    missing = ""
    try:
        missing = _missing_rights(throttle)
        said = store.run(Call(script("server_info"), [throttle.keys.limits])).decode()
    except StoreUnavailableError as error:
        if checks == "error":
            raise ConfigurationError(f"throttle_checks is 'error', but {error}") from error
        return  # it is logged as what it is, an outage
    except StoreError as error:
        found = [f"it cannot be checked (the user needs +info): {error}"]
    else:
        facts = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
        found = list(problems(facts, throttle.keys.prefix))
    if (found or missing) and checks == "error":
        raise ConfigurationError(
            f"throttle_checks is 'error', and of the server at {store.url}: "
            f"{'; '.join([*filter(None, [missing]), *found])}"
        )
    if missing:
        logger.error(
            "Of the server of the limits at %s: %s; until then tasks with limits may stay in their "
            "lines",
            *(store.url, missing),
        )
    for problem in found:
        logger.warning("Of the server of the limits at %s: %s", store.url, problem)


def _missing_rights(throttle: Throttle) -> str:
    """What is wrong with the rights of the user; nothing if it may run all that scripts run."""
    keys = throttle.keys
    call = Call(script("missing_rights"), [keys.permission_probe], [keys.wakeup_channel("nobody")])
    names = " ".join(f"+{name.decode().lower()}" for name in sorted(throttle.store.run(call)))
    if not names:
        return ""
    return f"its user lacks rights that scripts need: give it {names} (docs/stores.md)"


def problems(facts: Mapping[str, str], prefix: str) -> Iterator[str]:
    """What is wrong with a server, by what it says of itself.

    Args:
        facts: of its INFO, sections memory, persistence, replication and cluster.
        prefix: of all names.
    """
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
        what = "waiting tasks" if policy.startswith("allkeys") else "what is in use of limits"
        yield (
            f"maxmemory-policy is {policy}, so {what} may be evicted: "
            "set it to noeviction, or maxmemory to 0"
        )
    if facts.get("aof_enabled") == "0":
        yield (
            "appendonly is no, so tasks that wait are lost when it ends: set it to yes, "
            "with appendfsync always if not even the last second may be lost"
        )
    if facts.get("role") == "slave":
        yield "it is a replica, which cannot be written to: name its master, or Sentinels"
    if facts.get("cluster_enabled") == "1" and not _is_tagged(prefix):
        yield (
            f"it is a node of a cluster, and throttle_prefix {prefix!r} has no hash tag, so keys "
            "lie on several nodes: put it in braces, such as '{throttle}'"
        )


def _is_tagged(prefix: str) -> bool:
    start = prefix.find("{")
    return start >= 0 and prefix.find("}", start) > start + 1
