"""The page with a server of its own, for the command ``web``."""

from __future__ import annotations

import logging
from collections.abc import Collection

from celery_throttle.errors import require_extra
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.web.app import MAX_REQUEST_BYTES, create_app
from celery_throttle.web.security import require_loopback, require_password

with require_extra("waitress", "the command web", "web"):
    from waitress.server import (
        BaseWSGIServer,
        MultiSocketServer,
        create_server,
    )


Server = MultiSocketServer | BaseWSGIServer

# Whoever reaches the port can open connections without a password, and never finish a request.
# Those that stay silent are closed soon, and hundreds of them leave room for others. Waitress
# cannot bound those that send a little from time to time: a proxy does (docs/how-to/web.md).

#: Open connections at most. With its files, one takes up to 3 of the 1,024 files of a process.
_MAX_CONNECTIONS = 300

#: Seconds after which a silent connection is closed. A visible page polls every two seconds.
_SILENT_SECONDS = 10

#: Seconds between two looks for silent connections.
_CLEANUP_SECONDS = 5


def make_server(
    limiter: Limiter,
    host: str,
    port: int,
    password: str,
    actions: Collection[str] = (),
    *,
    show_arguments: bool = False,
) -> Server:
    """Return a server that listens already. OSError: it cannot listen.

    ``password``: of any user; if it is empty, the page answers only requests for this machine.
    ``actions``: those that all users may carry out. ConfigurationError: one is unknown.
    ``show_arguments``: see :func:`create_app`.
    """
    # It warns of each request that waits for a thread, which says nothing to whoever runs the page.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    auth = require_password(password) if password else require_loopback(host)
    app = create_app(limiter, auth=auth, actions=actions, show_arguments=show_arguments)
    return create_server(
        app,
        host=host,
        port=port,
        ident=None,  # no header of a response names the server
        max_request_body_size=MAX_REQUEST_BYTES,  # it is stored before a password is asked for
        connection_limit=_MAX_CONNECTIONS,
        channel_timeout=_SILENT_SECONDS,
        cleanup_interval=_CLEANUP_SECONDS,
    )


def port_of(server: Server) -> int:
    """Return the port on which a server listens."""
    if isinstance(server, MultiSocketServer):
        return int(server.effective_listen[0][1])  # of several addresses
    return int(server.effective_port)  # type: ignore[attr-defined]  # its stubs do not have it
