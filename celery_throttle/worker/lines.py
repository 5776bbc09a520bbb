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
from contextlib import suppress
from itertools import chain
from typing import Any
from uuid import uuid4

from celery import bootsteps
from celery.bootsteps import RUN  # type: ignore[attr-defined]  # missing in the stubs
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.worker import state
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_throttle.changes import MICROSECONDS, to_us
from celery_throttle.errors import StoreError, StoreUnavailableError
from celery_throttle.scripts import Argument, Call, script
from celery_throttle.worker import messages
from celery_throttle.worker.alarm import Alarm
from celery_throttle.worker.aside import Aside
from celery_throttle.worker.blocks import HORIZON
from celery_throttle.worker.checks import check_store
from celery_throttle.worker.claims import Claims
from celery_throttle.worker.fleet import Fleet
from celery_throttle.worker.gate import RETRY, Gate
from celery_throttle.worker.leases import Leases, let_go_of_dropped
from celery_throttle.worker.origin import Origin
from celery_throttle.worker.outage import Outage
from celery_throttle.worker.pace import Pace
from celery_throttle.worker.parking import Parking
from celery_throttle.worker.postponed import Postponed
from celery_throttle.worker.processes import LOOK, processes_of
from celery_throttle.worker.request import install
from celery_throttle.worker.revoked import Revoked
from celery_throttle.worker.sender import Sender
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.turns import Turns
from celery_throttle.worker.waiting import Waiting, places_of
from celery_throttle.worker.wake import Wake

logger = get_logger(__name__)

#: Seconds between two asks at most, with nothing waiting.
IDLE = 1.0

#: Seconds a settled claim may stay unreported.
FLUSH = 0.020

#: Seconds from one ask to the next within which slots that are given back are told together.
BUNCH = 0.002

#: Seconds between two asks of a worker that is woken again and again.
CALM = 0.005

#: Seconds after an outage in which no worker is taken for dead.
GRACE = 5.0


class Lines(bootsteps.StartStopStep):
    """The step: makes the watch of a worker that has tasks with limits."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        c.app.throttle.settings.check_names()
        c.app.throttle.check_routes()
        tasks = [task for task in c.app.tasks.values() if c.app.throttle.has_limits(task)]
        for task in tasks:
            install(task)
        self.enabled = bool(tasks)
        if tasks:
            check_store(c.app.throttle)

    def create(self, c: Any) -> Watch:  # type: ignore[override]  # the base gives what it made
        """The watch lives as long as the worker, over lost connections to the broker."""
        return Watch(c)

    def register_with_event_loop(self, _c: Any, hub: Any) -> None:
        """The loop was emptied when the connection was lost."""
        self.obj.wake.listen(hub)

    def stop(self, c: Any) -> None:
        """The connection is lost, or the worker is shutting down."""
        self.obj.stop(for_good=c.blueprint.state != RUN)

    def terminate(self, c: Any) -> None:
        """The worker is shutting down in a hurry."""
        self.stop(c)

    def info(self, _c: Any) -> dict[str, Any]:  # type: ignore[override]  # the base gives None
        """What ``celery inspect stats`` shows under ``throttle``."""
        return {"throttle": self.obj.stats()} if self.obj else {}


class Watch:
    """Takes tasks from lines and hands them to Celery. One a worker.

    With an event loop all of this runs in its thread, save what is said to come from elsewhere, and
    leases that are renewed. Without one, the timer's thread asks.
    """

    def __init__(self, consumer: Any) -> None:
        self._c = consumer
        self._throttle = consumer.app.throttle
        self._store = self._throttle.store
        keys = self._throttle.keys
        self.worker = f"{consumer.hostname}:{os.getpid()}:{uuid4().hex[:8]}"
        self._channel = keys.channel(self.worker)
        self._claims = Claims(self._store, keys, self.worker, self._on_settled)
        self._slots = TaskSlots(self.worker, self._on_released)
        self._alarm = Alarm(consumer, self._on_alarm)
        self._flush = Alarm(consumer, self._tell)
        self._release = Alarm(consumer, self._tell)
        self._leases = Leases(
            self._throttle.settings.lease,
            self._claims,
            self._slots,
            tell=lambda: self._call(0),
            renew=self._renew_slots,
        )
        self._aside = Aside(
            self._throttle,
            self._claims,
            names=lambda: consumer.strategies,
            queues=lambda: {keys.queue(name).lines for name in self._origin.names()},
        )
        self._fleet = Fleet(
            self._throttle, self.worker, back=self._on_back, recall=self._aside.recall
        )
        self._outage = Outage(self._throttle, self._fleet, self._slots)
        self._store.breaker.watcher = self._outage.begin
        self._pace = Pace()
        self._registered = False
        self._calling = threading.Lock()
        self._thread = 0
        self.wake = Wake(self._store, self._channel, self._on_wake)
        self._running = False
        self._in_turn = False
        self._asked = 0.0
        lease_us = to_us(self._throttle.settings.lease)
        self._revoked = Revoked(self._store, self._claims, lease_us, self._queue_keys)

    def start(self) -> None:
        """Begin, or go on over a new connection to the broker."""
        settings, c = self._throttle.settings, self._c
        self._fleet.start()
        self._register()
        self._origin = Origin(c)
        self._processes = processes_of(c, self._bring_again)
        self._sender = Sender(c, self._origin)
        postponed = Postponed(c, self._sender, self._bring_again)
        self._parking = self._make_waiting(postponed)
        self._throttle.gate = Gate(
            self._throttle,
            self._parking,
            self._slots,
            outage=self._outage,
            postponed=postponed,
            pace=self._pace,
            processes=self._processes,
            bring=self._bring_again,
            later=c.timer.call_after,
        )
        limits = ", ".join(
            f"{name} {' and '.join(map(str, own))}" for name, own in settings.limits.items()
        )
        logger.info("Limits are kept at %s: %s", self._store.url, limits)
        self._running = True
        self._thread = threading.get_ident()
        if self._processes.drops:
            let_go_of_dropped(self._claims, self._slots)
        if c.hub is None:
            self.wake.listen(None)
        self._leases.start(c.timer)
        if self._fleet.aside:
            self._aside.recall()
        self._alarm.set(0)

    def _make_waiting(self, postponed: Postponed) -> Waiting:
        def token() -> int:
            return self._claims.reserve(1)

        if self._throttle.settings.waiting == "broker":
            return Turns(self._throttle, self._slots, token, postponed)
        return Parking(
            self._throttle,
            self._slots,
            token,
            self._origin,
            parked=lambda wait: self._alarm.set(wait - HORIZON),
        )

    def stop(self, *, for_good: bool) -> None:
        """Give back what was not started. What runs goes on, and keeps its lease."""
        self._running = False
        self._alarm.cancel()
        self._flush.cancel()
        self._release.cancel()
        self._leases.stop(self._c.timer, for_good=for_good)
        self.wake.forget()
        self._throttle.gate.stop()
        self._sender.close()
        self._claims.give_back(self._claims.booked(), unless_started=True)
        if for_good:
            self.wake.stop()
            self._call(0)
            self._fleet.stop()

    def stats(self) -> dict[str, Any]:
        """What this worker holds and does."""
        return {
            **self._outage.stats(),
            "workers": self._fleet.size,
            "claims": len(self._claims),
            "aside": self._fleet.aside,
            **self._throttle.gate.stats(),
        }

    def _register(self) -> None:
        """Once; later, a limit that is missing is registered when it is used."""
        if not self._registered:
            with suppress(StoreUnavailableError):  # it is done when the server is back
                self._throttle.register()
                self._registered = True

    def _on_back(self) -> None:
        """The server is back. Comes from a thread of its own."""
        if self._c.hub is not None:
            self._c.hub.call_soon(self._go_on)
        else:
            self._c.timer.call_after(0, self._go_on)

    def _go_on(self) -> None:
        self._outage.end()
        self._register()
        # A server that has been replaced by its replica may not know what it was told last.
        self._claims.tell_again()
        self._slots.tell_again()
        self._renew_slots()
        if self._running:
            self._throttle.gate.is_back()
            self._alarm.set(0)

    def _renew_slots(self) -> None:
        with self._calling, suppress(StoreError):  # the next one may pass
            lease = self._throttle.settings.lease
            self._throttle.run_plan(self._slots.renewal(self._throttle.plans, lease))

    def _bring_again(self, request: Any) -> None:
        # Celery drops what is reserved when it loses the broker, which delivers it once more.
        if request in state.reserved_requests:
            self._c.on_task_request(request)

    # When to ask.

    def _on_wake(self) -> None:
        self._alarm.set(CALM if time.monotonic() - self._asked < CALM else 0)

    def _on_alarm(self) -> None:
        if self._room() > 0:
            self._ask()
        elif not self._in_turn:
            self._in_turn = True
            self._processes.when_free(self._on_turn)

    def _on_turn(self) -> None:
        self._in_turn = False
        if self._running and self._room() > 0:
            self._ask()
        elif self._running:
            # The free processes are for what is booked, and no one tells when that has ended.
            self._alarm.set(LOOK)

    def _room(self) -> int:
        return self._processes.free() - len(self._claims.booked())

    def _on_released(self) -> None:
        """Somebody may wait for the slot. Comes from whatever thread ended the task."""
        if not self._running:
            self._call(0)
        elif self._c.hub is None:
            self._release.set(0)
        elif (
            threading.get_ident() == self._thread
            and not self._processes.inline  # a task that ends would run the next before it is over
            and self._room() > 0
            and time.monotonic() - self._asked > BUNCH
        ):
            self._tell()
        else:  # sooner than any timer, and together with others that end now
            self._c.hub.call_soon(self._tell)

    def _on_settled(self) -> None:
        """Comes from whatever thread acknowledged the task."""
        if self._running:
            self._flush.set_from_elsewhere(FLUSH)
        else:
            self._call(0)

    def _tell(self) -> None:
        """Tell what ended. A slot that is given back is for a task that is asked for at once."""
        if self._slots.unreported() and self._room() > 0:
            self._ask()
        elif self._slots.unreported() or self._claims.unreported():
            self._call(0)

    # The call.

    def _ask(self) -> None:
        """Take what is due for the free processes."""
        for row in self._revoked.withdraw():
            self._receive(row)
        reply = self._call(max(0, self._room()))
        if reply is None:
            # When the server is back, this is set to 0.
            self._alarm.set(RETRY if self._outage.is_on else CALM)
            return
        ask_us, dead, *rows = reply
        for row in rows:
            self._receive(row)
        # After an outage a worker that lives may not have had its turn to say so.
        if dead and time.monotonic() - self._outage.ended > GRACE:
            self._claims.reclaim(dead.decode())
        self.wake.listen(self._c.hub)
        self._alarm.set(max(ask_us / MICROSECONDS, self._pace.rest()))

    def _call(self, room: int) -> list[Any] | None:
        with self._calling:
            return self._call_alone(room)

    def _call_alone(self, room: int) -> list[Any] | None:
        keys = self._throttle.keys
        names = [keys.limits, keys.parks, *self._claims.keys]
        if room:
            names += self._queue_keys()
        # While tasks queue for processes, one booked ahead might find none when its slot comes.
        ahead = 0 if self._processes.contended() else to_us(HORIZON)
        settled, releases = self._claims.take_settled(), self._slots.take_releases()
        first = self._claims.reserve(room)
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
            len(releases),
            *settled,
            *chain.from_iterable(releases),
            *self._parking.acknowledged(),
        ]
        began = time.monotonic()
        try:
            self._claims.give_back_unsure()
            reply: list[Any] = self._store.run(Call(script("claim"), names, args))
        except StoreError as error:
            logger.debug("Could not ask for due tasks: %s", error)
            self._claims.settle_again(settled)
            self._slots.release_again(releases)
            self._claims.doubt(first, room)
            return None
        finally:
            self._pace.spent(began)
        self._asked = time.monotonic()
        self._leases.heard()
        return reply

    def _queue_keys(self) -> list[str]:
        return [key for name in self._origin.names() for key in self._throttle.keys.queue(name)]

    # What came.

    def _receive(self, row: list[Any]) -> None:
        token, admitted, starts_us, waited_us, packed, _, *slots = row
        claim = self._claims.receive(
            token,
            admitted=admitted == 1,
            waited=waited_us / MICROSECONDS,
            slots=places_of(*slots) if slots else (),
        )
        timer = self._c.timer
        try:
            message = messages.unpack(packed, self._c.task_consumer.accept, claim)
            name = task_name(message)
        except messages.UnreadableMessageError:
            self._aside.put(claim, packed, None)
            return
        except (ContentDisallowed, DecodeError) as error:
            self._c.on_decode_error(message, error)
            return
        except (KeyError, TypeError):
            self._c.on_unknown_message(None, message)
            return
        if name not in self._c.strategies:
            self._aside.put(claim, packed, name)
            return
        if starts_us > 0:
            timer.call_after(starts_us / MICROSECONDS, self._start, (message,))
        else:
            self._start(message)

    def _start(self, message: messages.ClaimedMessage) -> None:
        """Its slot has come. Without a free process it waits 20 ms for one, then goes back."""
        if self._processes.free() > 0:
            self._hand_over(message)
        else:
            self._processes.when_free(lambda: self._hand_over(message))
            self._c.timer.call_after(HORIZON, self._give_up, (message,))

    def _give_up(self, message: messages.ClaimedMessage) -> None:
        self._claims.give_back([message.claim], unless_started=True)

    def _hand_over(self, message: messages.ClaimedMessage) -> None:
        c = self._c
        if message.claim.returned:
            return
        task = c.app.tasks[task_name(message)]
        payload = None if "task" in message.headers else message.payload
        try:
            c.strategies[task.name](
                message, payload, message.ack_log_error, message.reject_log_error, []
            )
        except (InvalidTaskError, ContentDisallowed) as error:
            c.on_invalid_task(payload, message, error)
        except DecodeError as error:
            c.on_decode_error(message, error)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Of another shape than any message has. From the broker, it would end the worker.
            if message.claim.started:
                raise
            c.on_invalid_task(payload, message, error)
        if not self._throttle.has_limits(task):
            # Its limits were taken away meanwhile, so no gate will see it start.
            message.claim.start()


def task_name(message: messages.ClaimedMessage) -> str:
    """The task's name, of either version of Celery's protocol.

    Raises:
        KeyError: there is none.
    """
    about = message.headers if "task" in message.headers else message.payload
    return str(about["task"])
