"""What the demo and its workers agree on. It reaches the workers through their environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from celery import Celery

VARIABLE = "THROTTLE_DEMO"

#: The name of the limit.
LIMIT = "demo"


@dataclass(frozen=True, slots=True)
class Setup:
    """One run of the demo.

    Attributes:
        url: the server: broker, keeper of the limits and notebook. It may hold a password.
        name: of the run, random: of its queue, and in every name it makes on the server.
        limit: the limit as text.
    """

    url: str
    name: str
    limit: str

    @property
    def prefix(self) -> str:
        """Of all names on the server."""
        return f"{{{self.name}}}"

    @property
    def events(self) -> str:
        """List: what the workers wrote down."""
        return f"{self.prefix}:events"

    def configure(self, app: Celery) -> None:
        """Settings of an app, the same for who sends and who works."""
        app.conf.update(
            broker_url=self.url,
            broker_connection_retry_on_startup=True,
            broker_transport_options={"global_keyprefix": f"{self.prefix}:broker:"},
            task_default_queue=self.name,
            task_ignore_result=True,
            worker_enable_remote_control=False,
        )

    def environment(self) -> dict[str, str]:
        """For the workers: this, and nothing that would set up Celery in another way."""
        inherited = {name: at for name, at in os.environ.items() if not name.startswith("CELERY_")}
        return inherited | {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Setup:
        """In a worker: what :meth:`environment` gave."""
        given: dict[str, Any] = json.loads(os.environ[VARIABLE])
        return cls(**given)
