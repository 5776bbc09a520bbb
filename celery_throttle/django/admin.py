"""The admin page of limits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from celery_throttle.django.checks import find_throttle, has_page
from celery_throttle.django.models import Limit

if TYPE_CHECKING:
    from flask import Flask


class LimitAdmin(admin.ModelAdmin):
    """Shows the web page in place of a list of rows. Register it in each admin site of your own."""

    def get_urls(self) -> list[Any]:
        """Return the URLs of the page and of all below it."""
        # The page sends its own Cache-Control, so that a poll may be answered by 304. It refuses
        # forged posts by their origin, and its forms have no token of Django.
        view = self.admin_site.admin_view(csrf_exempt(self.show_page), cacheable=True)
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [
            path("", view, {"path": ""}, name=name),
            path("<path:path>", view),
        ]

    def show_page(self, request: HttpRequest, path: str) -> HttpResponse:
        """Show a page to users who may view limits."""
        from celery_throttle.django.page import reply  # noqa: PLC0415  # an extra

        if not self.has_view_permission(request):
            raise PermissionDenied
        return reply(self._page, request, path)

    @cached_property
    def _page(self) -> Flask:
        from celery_throttle.django.page import make_page  # noqa: PLC0415  # an extra

        return make_page(find_throttle(), self)

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002  # Django's signature
        """Return False: code, rules and the page itself add limits."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002  # the same
        """Return False, for the same reason."""
        return False


if has_page():
    admin.site.register(Limit, LimitAdmin)
