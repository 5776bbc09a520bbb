"""The glossary has the words of the project, in order, and no word that was given up."""

from __future__ import annotations

import re

from tests.docs import pages

PAGE = pages.read("glossary.md")
TERMS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)

#: Words of which each has one meaning everywhere.
WORDS = """
rate, period, limit, burst, capacity, cost, units, emission interval, TAT, remaining, reset_after,
retry_after, key, key template, slot, lease, reservation, line, park, claim, release, requeue,
settle, acquire, peek, refund, pause, resume, define, gate, admission, dispatch, poll, wake-up,
heartbeat, membership, outage, fail open, fail closed, quarantine, weighted fair queueing,
virtual time, shadow, fan-out, forecast
"""

#: Words that each had several meanings.
RETIRED = (
    "turn place bound reference hold held tell told hear heard said ask near outside inside met"
)
RETIRED += " aside back crowd stock mend weigh touch"


def test_every_word_is_in_the_glossary() -> None:
    assert {word.strip() for word in WORDS.replace("\n", " ").split(",")} <= {*TERMS}


def test_no_term_is_a_retired_word() -> None:
    assert not {*RETIRED.split()} & {*TERMS}


def test_the_terms_are_in_alphabetical_order() -> None:
    assert sorted(TERMS, key=lambda term: re.sub(r"[^a-z]", " ", term.lower())) == TERMS


def test_links_to_terms_lead_to_a_term() -> None:
    anchors = {term.lower().replace(" ", "-") for term in TERMS}
    for path in pages.DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        for anchor in re.findall(r"\]\((?:\.\./)*glossary\.md#([\w-]+)\)", text):
            assert anchor in anchors, f"{path.name}: {anchor}"
