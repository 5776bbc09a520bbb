"""Why tests of Celery's suite have other outcomes with limits."""

from __future__ import annotations

from tests.celery_suite.differences import Place

#: Mode and id of a test to the reason.
REASONS: dict[Place, str] = {}
