"""The project as an ASGI app, below a path of another one."""

from __future__ import annotations

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

application = Starlette(routes=[Mount("/shop", get_asgi_application())])
