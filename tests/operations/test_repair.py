"""A server that has lost a key, such as by eviction: everything else keeps working."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.limits.key import ItemLike
from tests.protocol import LINE_KINDS, SECOND, Protocol
from tests.sizes import examples

QUEUES = ("p", "q")
LIMITS = {
    "api": "10/s",
    "mail": "5/s max-keys 9",
    "slots": "2 at once",
    "queue": "8/s burst 40 using leaky-queue",
}
SETS: tuple[Sequence[ItemLike], ...] = (
    ["api"],
    ["api", ("mail", "a")],
    ["api", ("mail", "b")],
    [("mail", "b")],
    ["slots"],
    ["queue"],
)
KINDS = (
    *LINE_KINDS,
    *(
        "messages",
        "claims",
        "polls",
        "workers",
        "unacknowledged",
        "state",
        "entries",
        "limits",
        "key-cap",
    ),
)


class Traffic:
    """Tasks that arrive, wait, run and end.

    Attributes:
        about: by task, what it needs, its queue, and the rank of its priority.
        waits: in lines.
        held: that run: by task, the token of its claim, or 0, and the holder of its slots.
        done: in the order in which they began.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        protocol.client.flushdb()
        protocol.limiter.register()
        self.about: dict[str, tuple[Sequence[ItemLike], str, int]] = {}
        self.waits: set[str] = set()
        self.held: dict[str, tuple[int, str]] = {}
        self.done: list[str] = []
        self.lost = ""

    def arrive(self, limits: Sequence[ItemLike], queue: str, rank: int = 3) -> None:
        task = str(len(self.about))
        self.about[task] = limits, queue, rank
        self._park(task)

    def _park(self, task: str) -> None:
        limits, queue, rank = self.about[task]
        outcome = ""
        while outcome in ("", "unknown"):
            if outcome:
                self.protocol.limiter.register()
            outcome = self.protocol.park(task, limits, queue=queue, rank=rank).outcome
        if outcome == "parked":
            self.waits.add(task)
        else:
            assert outcome == "admitted"
            self._begin(task, 0, f"task {task}")

    def _begin(self, task: str, token: int, holder: str) -> None:
        self.held[task] = token, holder
        self.done.append(task)

    def claim(self, room: int) -> None:
        for row in self.protocol.claim("w", room, queues=QUEUES, ahead=20_000):
            assert row.id in self.waits
            self.waits.remove(row.id)
            if row.admitted:
                self._begin(row.id, row.token, f"w {row.token} {row.id}")
            else:  # the gate decides
                self._park(row.id)
                self.protocol.claim("w", 0, settled=[row.token])

    def finish(self, task: str) -> None:
        token, holder = self.held.pop(task)
        self.protocol.claim("w", 0, settled=[token], released=[("slots", holder)])

    def give_back(self, task: str) -> None:
        token, _ = self.held[task]
        if token:
            del self.held[task]
            self.protocol.back("w", "own", token)
            self.waits.add(task)

    def withdraw(self, task: str) -> None:
        for row in self.protocol.withdraw("w", task, queues=QUEUES):
            self.waits.remove(row.id)
            self.protocol.claim("w", 0, settled=[-row.token])
            self.done.append(task)

    def lose(self, key: bytes) -> None:
        """Delete a key, as if the server had evicted it."""
        _, self.lost, *names = key.decode().split(":")
        self.protocol.client.delete(key)
        if self.lost == "messages":
            self.waits -= {task for task in self.waits if self.about[task][1] == names[0]}
        elif self.lost == "claims":
            self.held = {task: held for task, held in self.held.items() if not held[0]}

    def keys(self, kind: str) -> list[bytes]:
        keys: list[bytes] = self.protocol.client.keys(f"{{throttle}}:{kind}")
        return sorted(keys + self.protocol.client.keys(f"{{throttle}}:{kind}:*"))

    def drain(self) -> None:
        """All waiting tasks run soon, and no keys are left."""
        self._run_all(40 + 10 * len(self.about))  # a lease lasts 30 s
        if self.lost == "lines":
            # Nobody knew at which limits they waited: that is found when these are needed again.
            for queue in QUEUES:
                for limits in SETS:
                    self.protocol.now += 10 * SECOND  # each when all its limits are free
                    self.arrive(limits, queue)
                    self._run_all(20)
        self.protocol.check()
        for kind in (*LINE_KINDS, "claims"):
            assert self.keys(kind) == []
        if self.lost != "key-cap":  # else nobody knows in how many lines a key was
            key_cap = self.protocol.client.zrange("{throttle}:key-cap:mail", 0, -1, withscores=True)
            assert all(score < 2**53 for _, score in key_cap)

    def _run_all(self, claims: int) -> None:
        for _ in range(claims):
            self.claim(10)
            for task in list(self.held):
                self.finish(task)
            self.protocol.now += max(1, self.protocol.ask)
        assert not self.waits


Make = Callable[[], Traffic]


@pytest.fixture
def make(any_server_url: str) -> Iterator[Make]:
    protocol = Protocol(any_server_url, LIMITS)
    yield lambda: Traffic(protocol)
    protocol.close()


def fill(traffic: Traffic) -> None:
    for queue in QUEUES:
        for limits in SETS * 4:
            traffic.arrive(limits, queue)
    traffic.protocol.now += SECOND // 5
    traffic.claim(50)


@pytest.mark.thorough
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_task_whose_message_is_left_runs(make: Make, kind: str, *, more: bool) -> None:
    traffic = make()
    fill(traffic)
    keys = traffic.keys(kind)
    assert keys
    for key in keys:
        traffic = make()
        fill(traffic)
        traffic.lose(key)
        if more:
            fill(traffic)
        traffic.drain()


@pytest.mark.parametrize("kind", ["line", "waiting", "due", "backlog"])
def test_the_order_in_a_line_is_kept(make: Make, kind: str) -> None:
    traffic = make()
    for rank in (5, 3, 3, 9, 0, 3):
        traffic.arrive(["api"], "p", rank)
    (key,) = traffic.keys(kind)
    traffic.lose(key)
    traffic.arrive(["api"], "p", 4)
    traffic.drain()
    assert traffic.done == ["0", "4", "1", "2", "5", "6", "3"]


@pytest.mark.parametrize("kind", ["waiting-lists", "waiting-list-index"])
def test_who_changes_a_limit_finds_those_that_wait_after_their_next_look(
    make: Make, kind: str
) -> None:
    traffic = make()
    protocol = traffic.protocol
    protocol.limiter["slots"].pause(60)
    traffic.arrive(["slots"], "p")
    (key,) = traffic.keys(kind)
    traffic.lose(key)
    protocol.limiter["slots"].pause(120)  # nobody finds the list
    protocol.now += 60 * SECOND
    traffic.claim(1)
    protocol.now += SECOND
    protocol.limiter["slots"].reset()
    traffic.claim(1)
    assert traffic.done == ["0"]


step = st.tuples(
    st.sampled_from(["arrive", "arrive", "claim", "finish", "give_back", "withdraw", "wait"]),
    st.integers(0, 23),
)


def play(traffic: Traffic, do: str, which: int) -> None:
    if do == "arrive":
        traffic.arrive(SETS[which % len(SETS)], QUEUES[which % 2], rank=which % 3)
    elif do == "claim":
        traffic.claim(1 + which % 4)
    elif do == "wait":
        traffic.protocol.now += which * 10_000
    else:
        some = sorted(traffic.waits if do == "withdraw" else traffic.held)
        if some:
            getattr(traffic, do)(some[which % len(some)])


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_before_and_after(make: Make, kind: str) -> None:
    @settings(max_examples=examples(50))
    @given(
        before=st.lists(step, min_size=5, max_size=30),
        which=st.integers(0, 7),
        after=st.lists(step, max_size=15),
    )
    def show(before: list[tuple[str, int]], which: int, after: list[tuple[str, int]]) -> None:
        traffic = make()
        for do, number in before:
            play(traffic, do, number)
        keys = traffic.keys(kind)
        if keys:
            traffic.lose(keys[which % len(keys)])
        for do, number in after:
            play(traffic, do, number)
        traffic.drain()

    show()
