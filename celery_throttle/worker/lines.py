"""The consumer's step that takes tasks from their lines when a process is free for them.

It makes one kind of call, ``claim.lua``: renew this worker's lease, settle what is done, take due
tasks with their quota. The reply says when to ask next. Laws at stake: *never idle* (slots are
booked up to 20 ms ahead, so that pacing has no gaps), *never in the way* (a task is taken only for
a free process; where tasks queue for processes, the line queues with them) and *never lost* (what
is not started goes back to the head of its line).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any
from uuid import uuid4

from celery import bootsteps
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.worker import state
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_throttle.errors import StoreError
from celery_throttle.limiter import MICROSECONDS, to_us
from celery_throttle.scripts import Argument, Call, script
from celery_throttle.worker import messages
from celery_throttle.worker.blocks import HORIZON
from celery_throttle.worker.gate import RETRY, Gate
from celery_throttle.worker.messages import Claim
from celery_throttle.worker.origin import Origin
from celery_throttle.worker.processes import processes_of
from celery_throttle.worker.request import install
from celery_throttle.worker.wake import Wake

logger = get_logger(__name__)

#: Seconds between two asks at most, with nothing waiting.
IDLE = 1.0

#: Seconds a settled claim may stay unreported.
FLUSH = 0.020

#: Seconds a claim that this worker cannot run stays with it before it goes back.
UNREADABLE = 5.0


class Lines(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """The step: makes the gate and the watch of a worker that has tasks with limits."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        tasks = [task for task in c.app.tasks.values() if c.app.throttle.task_limits(task)]
        for task in tasks:
            install(task)
        self.enabled = bool(tasks)

    def create(self, c: Any) -> Watch:
        """The watch lives as long as the worker, over lost connections to the broker."""
        return Watch(c)

    def start(self, c: Any) -> None:
        """The worker is connected to the broker, and about to consume."""
        self.obj.start()

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """The loop was emptied when the connection was lost."""
        self.obj.wake.listen(hub)

    def stop(self, c: Any) -> None:
        """The connection is lost, or the worker is shutting down."""
        self.obj.stop(for_good=c.blueprint.state != bootsteps.RUN)

    terminate = stop


class Watch:
    """Takes tasks from lines and hands them to Celery. One a worker.

    With an event loop all of this runs in its thread. Elsewhere the timer's thread asks, and
    threads of the pool settle; what they share is a deque, a dict and integers that one of them
    writes.
    """

    def __init__(self, consumer: Any) -> None:
        self._c = consumer
        self._throttle = consumer.app.throttle
        self._store = self._throttle.store
        self._timer = consumer.timer
        keys = self._throttle.keys
        self.worker = f"{consumer.hostname}:{os.getpid()}:{uuid4().hex[:8]}"
        self._channel = keys.channel(self.worker)
        self._names = [keys.limits, keys.workers, keys.parks, keys.claims(self.worker)]
        self.wake = Wake(self._store, self._channel, self._woken)
        self._held: dict[int, Claim] = {}
        self._settled: deque[int] = deque()
        self._unsure: list[int] = []
        self._token = 1
        self._alarm: Any = None
        self._alarm_at = 0.0
        self._renewal: Any = None
        self._turn = False
        self._last = 0.0
        self._flushing = False
        self._running = False
        self._seen_revoked = 0

    def start(self) -> None:
        """Begin, or go on over a new connection to the broker."""
        settings = self._throttle.settings
        self._throttle.register()
        self.origin = Origin(self._c)
        self._processes = processes_of(self._c)
        self.gate = self._throttle.gate = Gate(
            self._throttle,
            queue_of=self.origin.queue_of,
            rank_of=self.origin.rank_of,
            parked=lambda wait: self._ask_in(wait - HORIZON),
            again=lambda request: self._timer.call_after(
                RETRY, self._c.on_task_request, (request,)
            ),
        )
        limits = ", ".join(f"{name} {limit}" for name, limit in settings.limits.items())
        logger.info("Limits are kept at %s: %s", self._store.url, limits)
        self._running = True
        if self._c.hub is None:
            self.wake.listen(None)
        self._renewal = self._timer.call_repeatedly(settings.lease / 3, self._renew)
        self._ask_in(0)

    # When to ask.

    def _ask_in(self, seconds: float) -> None:
        at = time.monotonic() + max(0.0, seconds)
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._timer.cancel(self._alarm)
        self._alarm_at = at
        self._alarm = self._timer.call_after(max(0.0, seconds), self._on_alarm)

    def _woken(self) -> None:
        # A busy line may wake a worker many times a second; once in a while is enough.
        self._ask_in(0.005 if time.monotonic() - self._last < 0.005 else 0)

    def _on_alarm(self) -> None:
        self._alarm = None
        if not self._running:
            return
        if self._room() > 0:
            self.ask()
        else:
            self._await_turn()

    def _await_turn(self) -> None:
        if not self._turn:
            self._turn = True
            self._processes.when_free(self._on_turn)

    def _on_turn(self) -> None:
        self._turn = False
        if self._running and self._room() > 0:
            self.ask()
        elif self._running:
            self._ask_in(HORIZON)

    def _room(self) -> int:
        booked = sum(1 for claim in self._held.values() if not claim.started)
        return self._processes.free() - booked

    # The call.

    def ask(self) -> None:
        """Take what is due for the free processes."""
        room = self._room()
        ahead = 0 if self._processes.contended() else to_us(HORIZON)
        self._withdraw_revoked()
        reply = self._claim(room, ahead)
        if reply is None:
            self._ask_in(RETRY)
            return
        ask_us, dead, *rows = reply
        for row in rows:
            self._receive(row)
        if dead:
            self._reclaim(dead.decode())
        self.wake.listen(self._c.hub)
        if ask_us <= 0:
            self._await_turn()
        else:
            self._ask_in(ask_us / MICROSECONDS)

    def _claim(self, room: int, ahead: int) -> list[Any] | None:
        keys = self._throttle.keys
        names = list(self._names)
        if room > 0:
            for queue in self.origin.names():
                names += keys.queue(queue)
        settled = [self._settled.popleft() for _ in range(len(self._settled))]
        first, self._token = self._token, self._token + room
        args: list[Argument] = [
            "",
            self.worker,
            self._channel,
            to_us(self._throttle.settings.lease),
            room,
            ahead,
            first,
            to_us(IDLE),
            len(settled),
            *settled,
            *self.gate.acknowledged(),
        ]
        try:
            self._give_back_unsure()
            reply: list[Any] = self._store.run(Call(script("claim"), names, args))
        except StoreError as error:
            # Nobody knows whether it was carried out: settle again, and take no token for granted.
            logger.debug("Could not ask for due tasks: %s", error)
            self._settled.extend(settled)
            self._unsure.extend(range(first, first + room))
            return None
        self._last = time.monotonic()
        return reply

    def _renew(self) -> None:
        """Keep the lease of a worker that has no free process to ask for."""
        if time.monotonic() - self._last > IDLE:
            self._claim(0, 0)

    def _flush(self) -> None:
        self._flushing = False
        if self._settled:
            self._claim(0, 0)

    # What came.

    def _receive(self, row: list[Any]) -> None:
        token, kind, starts_us, waited_us, packed, task_id = row
        claim = Claim(token, self._settle, admitted=kind == 1, waited=waited_us / MICROSECONDS)
        self._held[token] = claim
        try:
            message = messages.unpack(packed, self._c.task_consumer.accept, claim)
            self._c.strategies[message.headers["task"]]
        except (ValueError, KeyError) as error:
            logger.error("Task %s stays in its line, no worker code for it: %r", task_id, error)
            self._timer.call_after(UNREADABLE, self._give_back, ([claim],))
            return
        if starts_us > 0:
            self._timer.call_after(starts_us / MICROSECONDS, self._start, (message,))
        else:
            self._start(message)

    def _start(self, message: messages.ClaimedMessage) -> None:
        """Its slot has come. Without a free process it waits 20 ms for one, then goes back."""
        claim = message.claim
        if claim.returned:
            return
        if self._processes.free() > 0:
            self._hand_over(message)
            return
        self._processes.when_free(lambda: claim.returned or self._hand_over(message))
        self._timer.call_after(HORIZON, self._give_back, ([claim],))

    def _hand_over(self, message: messages.ClaimedMessage) -> None:
        c = self._c
        task = c.app.tasks[message.headers["task"]]
        try:
            c.strategies[task.name](
                message, None, message.ack_log_error, message.reject_log_error, []
            )
        except (InvalidTaskError, ContentDisallowed) as error:
            c.on_invalid_task(None, message, error)
        except DecodeError as error:
            c.on_decode_error(message, error)

    # What becomes of claims.

    def _settle(self, claim: Claim, requeue: bool) -> None:
        if requeue:
            self._give_back([claim], started=True)
            return
        if self._held.pop(claim.token, None) is None:
            return
        self._settled.append(claim.token)
        if not self._running:
            self._claim(0, 0)
        elif not self._flushing:
            self._flushing = True
            self._timer.call_after(FLUSH, self._flush)

    def _give_back(self, claims: list[Claim], started: bool = False) -> None:
        tokens = []
        for claim in claims:
            if (started or not claim.started) and self._held.pop(claim.token, None):
                claim.returned = True
                tokens.append(claim.token)
        self._unsure.extend(tokens)
        try:
            self._give_back_unsure()
        except StoreError as error:
            logger.debug("Could not give claims back yet: %s", error)

    def _give_back_unsure(self) -> None:
        if self._unsure:
            tokens = list(self._unsure)
            self._back(self.worker, "own", len(tokens), tokens)
            del self._unsure[: len(tokens)]

    def _back(self, worker: str, which: str, most: int, tokens: list[int]) -> int:
        keys = self._throttle.keys
        names = [keys.workers, keys.claims(worker)]
        args: list[Argument] = ["", worker, which, most, *tokens]
        left: int = self._store.run(Call(script("back"), names, args))
        return left

    def _reclaim(self, worker: str) -> None:
        """The lease of another worker has run out: its claims go back to their lines."""
        logger.warning("Worker %s is gone: its tasks go back to their lines", worker)
        try:
            while self._back(worker, "dead", 100, []):
                pass
        except StoreError as error:
            logger.debug("Could not give claims back yet: %s", error)

    def _withdraw_revoked(self) -> None:
        """Take newly revoked tasks out of their lines before quota is spent on them."""
        count = len(state.revoked)
        if count == self._seen_revoked:
            return
        self._seen_revoked = count
        ids = [str(task_id) for task_id in state.revoked]
        keys = self._throttle.keys
        names = [self._names[3]]
        for queue in self.origin.names():
            names += keys.queue(queue)
        for start in range(0, len(ids), 1000):
            some = ids[start : start + 1000]
            first, self._token = self._token, self._token + len(some)
            try:
                rows = self._store.run(Call(script("withdraw"), names, ["", first, *some]))
            except StoreError:
                self._unsure.extend(range(first, first + len(some)))
                self._seen_revoked = 0
                return
            for row in rows:
                self._receive(row)

    # The end.

    def stop(self, *, for_good: bool) -> None:
        """Give back what was not started. What runs goes on, and keeps its lease."""
        self._running = False
        for entry in (self._alarm, self._renewal):
            if entry is not None:
                self._timer.cancel(entry)
        self._alarm = None
        self.wake.forget()
        self._give_back([claim for claim in self._held.values() if not claim.started])
        if not for_good:
            return
        self.wake.stop()
        try:
            self._claim(0, 0)
        finally:
            if self._held:
                threading.Thread(target=self._linger, name="throttle-lease", daemon=True).start()

    def _linger(self) -> None:
        """Tasks still run while the worker shuts down, but its loop does not."""
        while self._held:
            time.sleep(self._throttle.settings.lease / 3)
            self._claim(0, 0)
