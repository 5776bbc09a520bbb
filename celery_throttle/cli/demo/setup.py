"""Settings that the demo and its workers share. Workers get them from their environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from celery import Celery

#: The environment variable.
VARIABLE = "THROTTLE_DEMO"

#: The name of the limit.
LIMIT = "demo"


@dataclass(frozen=True, slots=True)
class Setup:
    """One run of the demo."""

    url: str  #: the server: broker, limits and events; it may hold a password
    name: str  #: random: the queue's, and in all keys on the server
    limit: str  #: the limit as text

    @property
    def prefix(self) -> str:
        """The prefix of all keys on the server."""
        return f"{{{self.name}}}"

    @property
    def events(self) -> str:
        """The key of a list: the events of the workers."""
        return f"{self.prefix}:events"

    def configure(self, app: Celery) -> None:
        """Configure an app, the same for the sender and the workers."""
        app.conf.update(
            broker_url=self.url,
            broker_connection_retry_on_startup=True,
            broker_transport_options={"global_keyprefix": f"{self.prefix}:broker:"},
            task_default_queue=self.name,
            task_ignore_result=True,
            worker_enable_remote_control=False,
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker, without variables that configure Celery otherwise."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CELERY_")}
        return inherited | {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Setup:
        """Read the environment of a worker."""
        given: dict[str, Any] = json.loads(os.environ[VARIABLE])
        return cls(**given)
