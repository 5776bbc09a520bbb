"""The vendors of the tests, as benchmarks use them: with latency, errors, and counts.

Calls are those of issue 30: 300 calls that use 333,000 tokens, with 500 requests and 300,000 tokens
a minute, of which the vendor's buckets hold six seconds. A greater ``speed`` divides all times.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.clients.vendors import Anthropic, OpenAI, Reply, Vendor

OK = 200

#: Share of the calls that have been answered when the use of the quota is measured.
MOST = 0.95
TOKENS = 333_000
OPENAI_LIMITS = {"requests": 500, "tokens": 300_000}

#: Half of the tokens of a call go in and half come out, so the latter bind.
ANTHROPIC_LIMITS = {"requests": 500, "input-tokens": 200_000, "output-tokens": 150_000}

#: Seconds of a minute's quota that a bucket holds, and of an answer.
BURST_SECONDS, LATENCY_SECONDS = 6.0, 0.3


def sizes(count: int) -> list[int]:
    """Return the tokens that each call uses, in all 1,110 times their number."""
    chance = random.Random(30)  # the same each time
    shares = [chance.uniform(0.5, 1.5) for _ in range(count)]
    scale = TOKENS / 300 * count / sum(shares)
    return [round(share * scale) for share in shares]


def send(client: Any, sdk: str, tokens: int, **options: Any) -> Any:
    """Send a request that uses a number of tokens; its estimate is about twice that."""
    if sdk == "openai":
        messages = [{"role": "user", "content": f"{tokens} tokens"}]
        ask = client.chat.completions.create
        return ask(model="m", messages=messages, max_tokens=2 * tokens, **options)
    half = tokens // 2
    # Eight characters for each token that goes in.
    text = f"{half} in {tokens - half} out ".ljust(8 * half, ".")
    messages = [{"role": "user", "content": text}]
    return client.messages.create(
        model="m", max_tokens=2 * (tokens - half), messages=messages, **options
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """What a vendor has counted.

    Attributes:
        used: Share of the quota that binds, from the first request until 95% of the calls have been
            answered. Few calls remain then, and those that failed run again.
        statuses: of all answers, by their number.
        seconds: from the first request to the last answer.
    """

    used: float
    statuses: Counter[int]
    seconds: float


def _slow(kind: type[Vendor]) -> type[Any]:
    class SlowVendor(kind):  # type: ignore[valid-type, misc]  # one of two
        latency = 0.0
        answering = 0.0  #: seconds of all answers together

        def answer(self, request: dict[str, Any]) -> Reply:
            reply: Reply = super().answer(request)
            if reply.events is not None:
                reply.pause = self.latency / len(list(reply.events))
                self.answering += self.latency
                return reply
            seconds = reply.pause or (self.latency if reply.status == OK else 0.0)
            self.answering += seconds
            time.sleep(seconds)
            return reply

    return SlowVendor


_KINDS = {
    "openai": (_slow(OpenAI), OPENAI_LIMITS),
    "anthropic": (_slow(Anthropic), ANTHROPIC_LIMITS),
}


def start(sdk: str, speed: float, errors: float = 0.0, stall: float = 0.0) -> Any:
    """Start the vendor of an SDK.

    Args:
        sdk: Of openai and anthropic.
        speed: See above.
        errors: Share of the requests that fail: half of them with 500, half after a stall.
        stall: Seconds of the stall, after which the client has gone.
    """
    kind, limits = _KINDS[sdk]
    faster = {name: limit * speed for name, limit in limits.items()}
    vendor = kind(faster, BURST_SECONDS / speed)
    vendor.latency = LATENCY_SECONDS / speed
    vendor._server.handle_error = lambda *_: None  # noqa: SLF001  # its clients leave when they time out
    chance = random.Random(7)  # the same each time

    def fail(_request: dict[str, Any]) -> Reply | None:
        drawn = chance.random()
        if drawn >= errors:
            return None
        body = {"error": {"message": "no", "type": "server_error"}}
        return Reply(500, body, pause=stall if drawn < errors / 2 else 0.0)

    vendor.trouble = fail
    return vendor


def count(vendor: Any) -> Counts:
    """Return what a vendor has counted."""
    began = vendor.log[0][0]
    passed = [
        (at, vendor.charges(request))
        for (at, status), request in zip(vendor.log, vendor.requests, strict=True)
        if status == OK
    ]
    counted = passed[: math.ceil(MOST * len(passed))]
    seconds = counted[-1][0] - began
    used = max(
        sum(charges[name] for _, charges in counted) / (bucket.size + bucket.rate * seconds)
        for name, bucket in vendor.buckets.items()
    )
    return Counts(used, Counter(vendor.statuses()), passed[-1][0] - began)


def definitions(sdk: str, speed: float, *, is_unknown: bool = False) -> dict[str, str]:
    """Return the limits of a vendor, as we define them, by their quantity."""
    _, limits = _KINDS[sdk]
    found = {}
    for name, limit in limits.items():
        rate, burst = int(limit * speed), int(limit * BURST_SECONDS / 60)
        text = f"adaptive {rate // 10}..{rate * 10}/m" if is_unknown else f"{rate}/m"
        found[name.replace("-", "_")] = f"{text} burst {burst}"
    return found
