"""Servers that enforce what vendors of language models document, for their own SDKs.

A quota of a minute is a bucket that holds ``burst`` seconds of it and fills again by the second. A
request takes one of ``requests``; tokens are charged as the vendor says, and a refused request has
the headers and the body of the vendor.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Bucket:
    """A token bucket: ``limit`` a minute, of which it holds some seconds."""

    limit: float
    burst: float
    left: float = 0.0
    since: float = 0.0
    used: float = 0.0

    def __post_init__(self) -> None:
        self.left, self.since = self.size, time.monotonic()

    @property
    def rate(self) -> float:
        return self.limit / 60

    @property
    def size(self) -> float:
        return self.rate * self.burst

    def fill(self) -> None:
        now = time.monotonic()
        self.left = min(self.size, self.left + (now - self.since) * self.rate)
        self.since = now

    def wait_for(self, cost: float) -> float:
        """Seconds until this many units are left."""
        return max(0.0, min(cost, self.size) - self.left) / self.rate

    def take(self, cost: float) -> None:
        self.left -= cost
        self.used += cost


@dataclass
class Reply:
    """What the server sends."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    events: Iterable[tuple[str, Any]] | None = None  #: of a stream: the name and the data of each
    pause: float = 0.0  #: seconds between two events


class Vendor:
    """A server; a subclass knows the vendor."""

    def __init__(self, limits: Mapping[str, float], burst: float = 6.0) -> None:
        self.buckets = {name: Bucket(limit, burst) for name, limit in limits.items()}
        self.log: list[tuple[float, int]] = []  # the time and status of each answer
        self.requests: list[dict[str, Any]] = []
        #: Replies before any other, such as errors.
        self.replies: list[Reply] = []
        #: Returns a reply in place of the usual one, or None.
        self.trouble: Callable[[dict[str, Any]], Reply | None] = lambda _: None
        self._lock = threading.Lock()
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                reply = vendor.answer(vendor.request_of(self, body))
                if reply.events is None:
                    self._send(reply)
                else:
                    self._stream(reply)

            do_GET = do_HEAD = do_PUT = do_POST  # noqa: N815  # as http.server has them

            def _send(self, reply: Reply) -> None:
                is_raw = isinstance(reply.body, bytes)
                body = reply.body if is_raw else json.dumps(reply.body).encode()
                self.send_response_only(reply.status)
                headers = {"Content-Type": "application/json", **reply.headers}
                for name, text in headers.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

            def _stream(self, reply: Reply) -> None:
                self.send_response_only(reply.status)
                headers = {"Content-Type": "text/event-stream", **reply.headers}
                for name, text in headers.items():
                    self.send_header(name, text)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for name, data in reply.events or ():
                    text = data if isinstance(data, str) else json.dumps(data)
                    event = f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"
                    chunk = event.encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
                    time.sleep(reply.pause)
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: dict[str, Any]) -> Reply:
        with self._lock:
            self.requests.append(request)
            reply = self._reply(request)
            self.log.append((time.monotonic(), reply.status))
            return reply

    def _reply(self, request: dict[str, Any]) -> Reply:
        if self.replies:
            return self.replies.pop(0)
        trouble = self.trouble(request)
        if trouble is not None:
            return trouble
        charges = self.charges(request)
        for bucket in self.buckets.values():
            bucket.fill()
        lacking = {
            name: self.buckets[name].wait_for(cost)
            for name, cost in charges.items()
            if name in self.buckets
        }
        name, wait = max(lacking.items(), key=lambda one: one[1])
        if wait > 0:
            return self.refusal(name, wait)
        for name, cost in charges.items():
            if name in self.buckets:
                self.buckets[name].take(cost)
        return self.success(request)

    def statuses(self) -> list[int]:
        return [status for _, status in self.log]

    # What a subclass knows.

    def request_of(self, http: BaseHTTPRequestHandler, body: bytes) -> dict[str, Any]:  # noqa: ARG002
        """Return the request as the other methods read it."""
        return dict(json.loads(body or b"{}"))

    def charges(self, request: dict[str, Any]) -> dict[str, float]:
        """Units that a request takes."""
        raise NotImplementedError

    def refusal(self, name: str, wait: float) -> Reply:
        raise NotImplementedError

    def success(self, request: dict[str, Any]) -> Reply:
        raise NotImplementedError


class OpenAI(Vendor):
    """Chat completions. The last message says how many tokens the answer uses in all."""

    def charges(self, request: dict[str, Any]) -> dict[str, float]:
        return {"requests": 1, "tokens": self.usage(request)}

    @staticmethod
    def usage(request: dict[str, Any]) -> int:
        return int(request["messages"][-1]["content"].split()[0])

    def headers(self) -> dict[str, str]:
        found = {}
        for name, bucket in self.buckets.items():
            found[f"x-ratelimit-limit-{name}"] = str(int(bucket.limit))
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.left)))
            full = (bucket.size - bucket.left) / bucket.rate
            found[f"x-ratelimit-reset-{name}"] = f"{int(full * 1000)}ms"
        return found

    def refusal(self, name: str, wait: float) -> Reply:
        error = {"message": "Rate limit", "type": name, "code": "rate_limit_exceeded"}
        again = {"retry-after-ms": str(int(wait * 1000) + 1), "retry-after": str(int(wait) + 1)}
        return Reply(429, {"error": error}, {**self.headers(), **again})

    def success(self, request: dict[str, Any]) -> Reply:
        total = self.usage(request)
        usage = {"prompt_tokens": 1, "completion_tokens": total - 1, "total_tokens": total}
        common = {"id": "1", "created": 1, "model": request["model"]}
        if not request.get("stream"):
            message = {"role": "assistant", "content": "hi"}
            choices = [{"index": 0, "finish_reason": "stop", "message": message}]
            body = {**common, "object": "chat.completion", "choices": choices, "usage": usage}
            return Reply(200, body, self.headers())
        chunk = {**common, "object": "chat.completion.chunk"}
        choice = {"index": 0, "delta": {"content": "hi"}, "finish_reason": None}
        events: list[tuple[str, Any]] = [("", {**chunk, "choices": [choice], "usage": None})] * 3
        if request.get("stream_options", {}).get("include_usage"):
            events.append(("", {**chunk, "choices": [], "usage": usage}))
        return Reply(200, None, self.headers(), [*events, ("", "[DONE]")], pause=0.05)


class Anthropic(Vendor):
    """Messages. The last message says how many tokens go in and out: ``"100 in 20 out"``."""

    def charges(self, request: dict[str, Any]) -> dict[str, float]:
        tokens_in, tokens_out = self.usage(request)
        return {"requests": 1, "input-tokens": tokens_in, "output-tokens": tokens_out}

    @staticmethod
    def usage(request: dict[str, Any]) -> tuple[int, int]:
        words = request["messages"][-1]["content"].split()
        return int(words[0]), int(words[2])

    def headers(self) -> dict[str, str]:
        found = {}
        for name, bucket in self.buckets.items():
            prefix = f"anthropic-ratelimit-{name}"
            found[f"{prefix}-limit"] = str(int(bucket.limit))
            found[f"{prefix}-remaining"] = str(max(0, int(bucket.left)))
            full = time.time() + (bucket.size - bucket.left) / bucket.rate
            found[f"{prefix}-reset"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(full))
        return found

    def refusal(self, name: str, wait: float) -> Reply:
        error = {"type": "rate_limit_error", "message": name}
        again = {"retry-after": str(int(wait) + 1)}
        return Reply(429, {"type": "error", "error": error}, {**self.headers(), **again})

    def success(self, request: dict[str, Any]) -> Reply:
        tokens_in, tokens_out = self.usage(request)
        message = {
            "id": "1",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [{"type": "text", "text": "hi"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": tokens_in, "output_tokens": tokens_out},
        }
        if not request.get("stream"):
            return Reply(200, message, self.headers())
        begun = {**message, "content": [], "usage": {"input_tokens": tokens_in, "output_tokens": 1}}
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        events: list[tuple[str, Any]] = [
            ("message_start", {"type": "message_start", "message": begun}),
            (
                "content_block_start",
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {"type": "text", "text": ""},
                },
            ),
            (
                "content_block_delta",
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": "hi"},
                },
            ),
            ("content_block_stop", {"type": "content_block_stop", "index": 0}),
            (
                "message_delta",
                {"type": "message_delta", "delta": delta, "usage": {"output_tokens": tokens_out}},
            ),
            ("message_stop", {"type": "message_stop"}),
        ]
        return Reply(200, None, self.headers(), events, pause=0.05)
