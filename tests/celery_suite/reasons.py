"""Why tests of Celery's suite have other outcomes with limits."""

from __future__ import annotations

from tests.celery_suite.differences import Place

_GROUP_OF_FAILURES = (
    "t/integration/test_canvas.py::test_chord::"
    "test_mutable_errback_called_by_chord_from_group_fail_multiple_on_body_failure"
)

_STARMAP = (
    "A starmap takes the units of its three elements at once, and 20/s gives one at once: "
    "the task fails with CostError."
)

#: Mode and id of a test to the reason.
REASONS: dict[Place, str] = {
    ("binds", f"{_GROUP_OF_FAILURES}[errback_old_style]"): (
        "42 errbacks are tasks, and start one after the other within 2 s. "
        "After the first one the test waits 1 s for all others."
    ),
    **{
        ("binds", f"t/integration/test_canvas.py::test_xmap_xstarmap::{test}"): _STARMAP
        for test in ("test_starmap_in_a_group_and_a_chain", "test_starmap_keeps_frozen_id_and_link")
    },
}
