"""The settings of examples/django_shop, as in production."""

from __future__ import annotations

import django
from shop.settings import *  # type: ignore[import-not-found]  # noqa: F403  # on the search path of its processes
from shop.settings import MIDDLEWARE

DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.django.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a fast one
THROTTLE_WEB_ACTIONS = ["pause", "resume"]
THROTTLE_WEB_ARGUMENTS = True
MIDDLEWARE = [
    *MIDDLEWARE,
    "django.middleware.csrf.CsrfViewMiddleware",
    "tests.django.urls.read_form",
]
if django.VERSION >= (6,):
    MIDDLEWARE += ["django.middleware.csp.ContentSecurityPolicyMiddleware"]
    SECURE_CSP = {"default-src": ["https://example.com"]}
