"""Checks before a worker starts: can the server lose waiting tasks, and has its user all rights?"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from celery.utils.log import get_logger

from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys, has_hash_tag
from celery_throttle.store.script import Call, script

logger = get_logger(__name__)


def check_store(store: Store, keys: Keys, checks: str) -> None:
    """Warn of a server that may lose or evict tasks, or refuse it.

    A missing right is logged as an error: scripts fail where they need it. ``checks`` is the
    setting ``throttle_checks``: "off", "warn" or "error".

    Raises:
        ConfigurationError: a check has failed and ``checks`` is "error"; the message says what to
            set.
    """
    if checks == "off":
        return
    rights = Call(
        script("missing_rights"), [keys.permission_probe], [keys.wakeup_channel("nobody")]
    )
    missing: list[str] = []
    try:
        names = " ".join(f"+{name.decode().lower()}" for name in sorted(store.run(rights)))
        if names:
            missing.append(
                f"its user lacks rights that scripts need: give it {names} "
                "(docs/how-to/servers.md); until then tasks with limits may stay in their lines"
            )
        info = store.run(Call(script("server_info"), [keys.limits])).decode()
    except StoreUnavailableError as error:
        if checks == "error":
            raise ConfigurationError(f"throttle_checks is 'error', but {error}") from error
        return  # it is logged as an outage
    except StoreError as error:
        found = [f"the server cannot be checked (its user needs +info): {error}"]
    else:
        facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        found = list(find_problems(facts, keys.prefix))
    if checks == "error" and (missing or found):
        raise ConfigurationError(
            f"throttle_checks is 'error', and the server {store.url} has these problems: "
            f"{'; '.join([*missing, *found])}"
        )
    for level, problems in ((logging.ERROR, missing), (logging.WARNING, found)):
        for problem in problems:
            logger.log(level, "Server %s: %s", store.url, problem)


def find_problems(facts: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Yield what is wrong with a server, by its own ``INFO``.

    ``facts``: the fields of the sections memory, persistence, replication and cluster.
    """
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
        evicted = "waiting tasks" if policy.startswith("allkeys") else "states of limits in use"
        yield (
            f"maxmemory-policy is {policy}, so {evicted} may be evicted: "
            "set it to noeviction, or maxmemory to 0"
        )
    if facts.get("aof_enabled") == "0":
        yield (
            "appendonly is no, so waiting tasks are lost if it restarts: set it to yes, "
            "with appendfsync always if not even the last second may be lost"
        )
    if facts.get("role") == "slave":
        yield "it is a replica and cannot be written to: name its master, or Sentinels"
    if facts.get("cluster_enabled") == "1" and not has_hash_tag(prefix):
        yield (
            f"it is a node of a cluster, and throttle_prefix {prefix!r} has no hash tag, so keys "
            "are spread over several nodes: put it in braces, such as '{throttle}'"
        )
