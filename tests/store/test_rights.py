"""A user with the rights that docs/how-to/servers.md lists, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_throttle import Limiter, StoreError
from celery_throttle.store.client import Store
from celery_throttle.store.script import script
from tests.docs import pages
from tests.ends import End, MakeEnd
from tests.lua_names import script_names
from tests.servers.server import Server, wait_until
from tests.store.conftest import StartServer
from tests.store.listening import PING, listening
from tests.store.queue import Queue
from tests.workers import StartWorker

LINE = re.compile(r"^ACL SETUSER throttle on >password .*$", re.MULTILINE)

#: What redis-py tells of itself; it takes no notice of a refusal. Redis 6 names no subcommand.
ABOUT_CLIENTS = ("client|setinfo", "client")


def the_line() -> str:
    (line,) = LINE.findall(pages.read("how-to/servers.md"))
    return str(line)


class Guarded:
    """A server with the user.

    Attributes:
        url: for the user.
        server: as one who may do everything sees it.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url.replace("//", "//throttle:password@").removesuffix("/0")
        with server.client() as client:
            client.execute_command(*the_line().split())

    def take_away(self, command: str) -> None:
        self._change(f"-{command}")

    def give(self, command: str) -> None:
        self._change(f"+{command}")

    def _change(self, right: str) -> None:
        with self.server.client() as client:
            client.acl_setuser("throttle", enabled=True, commands=[right])

    def refusals(self, command: str) -> int:
        """Return the number of refused commands. Equal entries of the log count once."""
        with self.server.client() as client:
            entries = client.acl_log()
        return sum(int(entry["count"]) for entry in entries if entry["object"] == command)

    def refused(self) -> list[str]:
        with self.server.client() as client:
            entries = client.acl_log()
        return [entry["object"] for entry in entries if entry["object"] not in ABOUT_CLIENTS]


@pytest.fixture
def guarded(command: Path, start_server: StartServer) -> Guarded:
    return Guarded(start_server(command))


def test_the_line_names_what_the_scripts_use() -> None:
    sources = [script(name).source.decode() for name in script_names()]
    used = {
        name.lower()
        for source in sources
        for name in re.findall(r"call(?:_with)?\('(\w+)'", source)
    }
    further = set(re.findall(r"^\| `\+(scan)` \|", pages.read("how-to/servers.md"), re.MULTILINE))
    named = set(re.findall(r"\+([a-z]+)(?= |$)", the_line().partition("+role ")[2]))
    assert used == named | further


def test_the_check_of_a_worker_tries_them_all() -> None:
    tried = re.findall(r"(?:\{ |may\()'([A-Z]+)'", script("missing_rights").source.decode())
    rights = set(re.findall(r"\+([a-z]+)(?= |$)", the_line().partition("+role ")[2]))
    assert {name.lower() for name in tried} == rights - {"info"}  # which the other check needs


def test_every_operation(guarded: Guarded, end_of: MakeEnd) -> None:
    limits = {
        "api": "1/h burst 100",
        "mail": ["100/m using sliding-log", "1000/day using fixed-window in Europe/Berlin"],
        "parts": "100/m using sliding-window",
        "pair": "2 at once",
    }
    plain = Limiter(guarded.url, limits)
    plain.register()
    limiter = end_of(plain)
    with limiter.hold(plain["pair"].slot()):
        assert limiter.try_acquire(["api", limiter["mail", 1], "parts"], 2)
    reserved = limiter.reserve(["mail", "api"], 3)
    End(reserved, limiter._loop).settle(1)
    assert limiter["api"].acquire_up_to(3).granted == 3
    assert limiter["api"].peek().remaining == 94
    limiter["parts"].pause(1)
    limiter["parts"].reset()
    limiter["parts", 1].define("5/s")
    limiter["parts", 1].undefine()
    assert guarded.refused() == []


@pytest.mark.thorough
def test_other_keys_and_commands_are_refused(guarded: Guarded, end_of: MakeEnd) -> None:
    with pytest.raises(StoreError, match="permissions"):
        end_of(Limiter(guarded.url, {"api": "1/s"}, prefix="{other}"))["api"].try_acquire()
    guarded.take_away("set")
    with pytest.raises(StoreError, match=r"docs/how-to/servers\.md"):
        end_of(Limiter(guarded.url, {"api": "1/s"}))["api"].try_acquire()


def test_a_sleeping_worker_is_woken(guarded: Guarded) -> None:
    store = Store(guarded.url)
    store.run(PING)
    with listening(store) as listener, guarded.server.client() as client:
        listener.hears(client)
    assert guarded.refused() == []


@pytest.mark.thorough
@pytest.mark.workers
def test_tasks_wait(guarded: Guarded, redis_url: str, start_worker: StartWorker) -> None:
    queue = Queue(redis_url, guarded.url, redis_url)
    start_worker("tests.apps.stores", redis_url, env=queue.env)
    queue.tasks_wait(8)
    queue.tasks_run()
    assert guarded.refused() == []


#: Whose lack ends a script before its first write, in its middle, and late.
SOME = ("hset", "zrem", "incrby", "pexpire")


@pytest.mark.thorough
@pytest.mark.workers
@pytest.mark.parametrize("command_name", SOME)
def test_tasks_wait_until_a_missing_right_is_given(
    guarded: Guarded, redis_url: str, start_worker: StartWorker, command_name: str
) -> None:
    """A script that fails in the middle blocks no task, and loses none."""
    queue = Queue(redis_url, guarded.url, redis_url)
    worker = start_worker("tests.apps.stores", redis_url, env=queue.env)
    queue.tasks_wait(40)
    guarded.take_away(command_name)
    with guarded.server.client() as client:
        client.delete("{throttle}:pause:turn")
        queue_name = "redis/0/stores"
        client.zadd(
            f"{{throttle}}:due:{queue_name}",
            {f"{{throttle}}:waiting:turn/{queue_name}": 0},
            xx=True,
        )
    log = worker.log
    wait_until(lambda: "refuses claims" in log(), "an error in the log")
    assert "ERROR/MainProcess] The server refuses claims" in log()
    assert guarded.server.url.rpartition("/")[0] in log()
    wait_until(lambda: guarded.refusals(command_name) > 1, "another try")
    guarded.give(command_name)
    wait_until(queue.all_ran, "all tasks run")
    assert sorted(set(queue.noted("runs"))) == list(range(40))
    with guarded.server.client() as client:
        wait_until(
            lambda: not client.keys("{throttle}:claims:*") + client.keys("{throttle}:line*"),
            "lines and claims that hold nothing",
        )


@pytest.mark.thorough
@pytest.mark.workers
def test_a_worker_says_at_its_start_which_rights_are_missing(
    guarded: Guarded, redis_url: str, start_worker: StartWorker
) -> None:
    queue = Queue(redis_url, guarded.url, redis_url)
    guarded.take_away("pexpire")
    guarded.take_away("zincrby")
    log = start_worker("tests.apps.stores", redis_url, env=queue.env).log()
    assert "its user lacks rights that scripts need: give it +pexpire +zincrby" in log
    assert "ERROR" in log
    guarded.give("pexpire")
    with guarded.server.client() as client:
        polls = "{throttle}:polls:redis/0/stores"
        wait_until(lambda: client.pttl(polls) != -1, "the expiry that was missing")
