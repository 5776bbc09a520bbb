"""The address of a server, and connections of redis-py to it."""

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
    """The address of a server. The options are those of redis-py's connections, with passwords."""

    kind: str  #: ``tcp``, ``tls`` or ``unix``
    options: Mapping[str, Any] = field(repr=False)

    def with_host(self, host: str, port: int) -> Address:
        """Return the address of another server, with the same options; no host means this one."""
        kind = "tcp" if self.kind == "unix" else self.kind
        options = {name: value for name, value in self.options.items() if name != "path"}
        return Address(kind, options | {"host": host or self.host, "port": port})

    @property
    def host(self) -> str:
        """The host; ``localhost`` for a Unix socket."""
        return str(self.options.get("host", "localhost"))

    def __str__(self) -> str:
        path = self.options.get("path")
        return str(path or f"{self.host}:{self.options.get('port', 6379)}")


def make_connection(address: Address, *, asynchronous: bool = False) -> Any:
    """Make a connection of redis-py, without connecting.

    Raises:
        TypeError, ValueError, RedisError: an option is wrong.
    """
    kinds: Mapping[str, Any] = _ASYNC_CONNECTIONS if asynchronous else _CONNECTIONS
    # No retries by the client: its default stalls a call for seconds when the server is down.
    retry = AsyncRetry(NoBackoff(), 0) if asynchronous else Retry(NoBackoff(), 0)
    return kinds[address.kind](**address.options, retry=retry)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate errors of redis-py while it connects to ``OSError`` or ``hiredis.ReplyError``."""
    try:
        yield
    except RedisTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except RedisError as error:
        # To redis-py, a wrong password is a ConnectionError.
        if isinstance(error, AuthenticationError) or not isinstance(error, RedisConnectionError):
            raise hiredis.ReplyError(str(error)) from error
        raise ConnectionError(str(error)) from error
