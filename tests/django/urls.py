"""The URLs of examples/django_shop, with a second admin site."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import path
from shop.urls import urlpatterns as shop_urls  # type: ignore[import-not-found]  # see settings.py

from celery_throttle.django.admin import LimitAdmin
from celery_throttle.django.models import Limit

operations = AdminSite("operations")
operations.site_header = "Shop <operations>"
operations.register(Limit, LimitAdmin)

urlpatterns = [*shop_urls, path("operations/", operations.urls)]


def read_form(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that reads the body of each form before the page does."""

    def middleware(request: HttpRequest) -> HttpResponse:
        _ = request.POST
        return get_response(request)

    return middleware
