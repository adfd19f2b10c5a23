"""Every sentence that says that something was not seen on AWS has a check in `nodesweep
conformance`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from nodesweep.conformance.claims import CLAIMS, sentences_of
from nodesweep.conformance.registry import CHECKS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for pattern in (
        "*.md",
        "docs/*.md",
        "infra/*/README.md",
        "examples/README.md",
        "nodesweep/launch/*/README.md",
    )
    for path in REPOSITORY.glob(pattern)
)
UNSEEN = re.compile(
    r"never ran|never run on|has never run|nothing (in it )?has run|not (yet )?(seen |run )?on AWS"
    r"|untested|known from \w+ \w* ?only|not verified",
    re.IGNORECASE,
)
ELSEWHERE = {
    ("docs/distribution.md", "what never ran"),  # the heading of a column
    ("docs/distribution.md", "which is not on AWS's list"),
    ("infra/local/README.md", "`docker` has the same commands but is untested"),
    ("infra/local/README.md", "are untested."),  # other versions of clients of the emulator
}
"""Such words about other things than AWS."""


@cache
def text_of(page: str) -> str:
    """Return the page without headings, link targets and line breaks."""
    text = re.sub(r"^#.*$", "", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.M)
    return re.sub(r"\s+", " ", re.sub(r"\]\([^)]*\)", "]", text))


@pytest.mark.parametrize("page", PAGES)
def test_what_is_said_to_be_unseen_on_aws_has_a_check(page: str) -> None:
    text = text_of(page)
    for known in [claim.text for claim in CLAIMS if claim.page == page]:
        text = text.replace(known, "")
    for known in [text for of, text in ELSEWHERE if of == page]:
        text = text.replace(known, "")
    assert [text[max(0, hit.start() - 60) : hit.end() + 60] for hit in UNSEEN.finditer(text)] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.text[:40]}")
def test_a_claim_is_on_its_page_and_its_checks_exist(claim: tuple[str, ...]) -> None:
    page, text, checks = claim
    assert text in text_of(page)
    assert checks and set(checks) <= {check.id for check in CHECKS}


def test_twenty_sentences_and_every_check_is_there_for_one() -> None:
    assert len(CLAIMS) >= 20
    without = {check.id for check in CHECKS if not sentences_of(check.id)}
    # they show how an emulator's answer differs from AWS's, and what no page doubts
    assert without == {"spot", "warm-pool", "instance-fallbacks", "training-plan"}


def test_exceptions_are_on_their_pages() -> None:
    assert [each for each in sorted(ELSEWHERE) if each[1] not in text_of(each[0])] == []
