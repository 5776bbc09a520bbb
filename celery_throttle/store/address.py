"""Where a server is, and how redis-py connects to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

_CONNECTIONS = {
    "tcp": redis.Connection,
    "tls": redis.SSLConnection,
    "unix": redis.UnixDomainSocketConnection,
}
_ASYNC_CONNECTIONS = {
    "tcp": redis.asyncio.Connection,
    "tls": redis.asyncio.SSLConnection,
    "unix": redis.asyncio.UnixDomainSocketConnection,
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and how one connects to it.

    Attributes:
        kind: ``tcp``, ``tls`` or ``unix``.
        options: as redis-py's connections take them; passwords are among them.
    """

    kind: str
    options: Mapping[str, Any] = field(repr=False)

    def at(self, host: str, port: int) -> Address:
        """Another server, to which one connects in the same way; without a host, at this one."""
        kind = "tcp" if self.kind == "unix" else self.kind
        options = {name: value for name, value in self.options.items() if name != "path"}
        return Address(kind, options | {"host": host or self.host, "port": port})

    @property
    def host(self) -> str:
        """Its host; of a socket in the file system this one."""
        return str(self.options.get("host", "localhost"))

    def __str__(self) -> str:
        path = self.options.get("path")
        return str(path or f"{self.host}:{self.options.get('port', 6379)}")


def make_connection(address: Address, *, asynchronous: bool = False) -> Any:
    """A connection of redis-py that is not connected yet.

    Raises:
        TypeError, ValueError, RedisError: an option is wrong.
    """
    kinds: Mapping[str, Any] = _ASYNC_CONNECTIONS if asynchronous else _CONNECTIONS
    # No retries by the client: its default stalls a call for seconds when the server is down.
    retry = AsyncRetry(NoBackoff(), 0) if asynchronous else Retry(NoBackoff(), 0)
    return kinds[address.kind](**address.options, retry=retry)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let what redis-py raises when it connects be an ``OSError`` or a ``ReplyError``."""
    try:
        yield
    except RedisTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except RedisError as error:
        # redis-py takes a wrong password for a lost connection.
        if isinstance(error, AuthenticationError) or not isinstance(error, RedisConnectionError):
            raise hiredis.ReplyError(str(error)) from error
        raise ConnectionError(str(error)) from error
