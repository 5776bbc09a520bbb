"""A Flask app with Celery, in each way that Flask's documentation has had. FLASK_WAY is the way:

``task_cls``: that of Flask 2.3 and later; its tasks are shared tasks. ``before``: that of Flask 2.2
and earlier, which assigns a class to ``celery.Task``. ``after``: the same, after ``Throttle(app)``.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task, shared_task
from flask import Flask, current_app

from celery_throttle import Throttle

WAY = os.environ.get("FLASK_WAY", "task_cls")
URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")

flask_app = Flask("shop")
flask_app.config["CELERY"] = {
    "broker_url": URL,
    "result_backend": URL,
    "task_default_queue": "flasked",
    "broker_connection_retry_on_startup": True,
}


def celery_init_app(app: Flask) -> Any:
    class FlaskTask(Task):
        def __call__(self, *args: object, **kwargs: object) -> object:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


def make_celery(app: Flask) -> Any:
    celery = Celery(app.import_name)
    celery.conf.update(app.config["CELERY"])
    celery.set_default()
    return celery


def assign_task(celery: Any, app: Flask) -> None:
    class ContextTask(celery.Task):  # type: ignore[misc]  # made at run time
        def __call__(self, *args: object, **kwargs: object) -> object:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery.Task = ContextTask


if WAY == "task_cls":
    app: Any = celery_init_app(flask_app)
else:
    app = make_celery(flask_app)
if WAY == "before":
    assign_task(app, flask_app)


def name_of_app() -> str:
    """The name of the Flask app in whose context this is; an error outside of one."""
    return str(current_app.name)


if WAY != "after":
    early = app.task(name_of_app, name="early", throttle="api", lazy=False)
throttle = Throttle(app, {"api": "1/h burst 100"})
if WAY == "after":
    assign_task(app, flask_app)

limited = app.task(name_of_app, name="limited", throttle="api")
not_limited = app.task(name_of_app, name="not_limited")
shared = shared_task(name_of_app, name="shared", throttle="api")  # type: ignore[call-overload]  # the stubs know Celery's options


class Written(app.Task):  # type: ignore[misc]  # made at run time
    name = "written"
    throttle = "api"

    def run(self) -> str:
        return name_of_app()


app.register_task(Written())
