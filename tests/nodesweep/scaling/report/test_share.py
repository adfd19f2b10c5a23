"""share.html names neither the account, the machine nor a user, whatever the report contains."""

from __future__ import annotations

import re

import pytest

from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.render import render_html, render_share
from nodesweep.scaling.report.share import LEFT_OUT, without_account_names

ACCOUNT = "210987654321"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/team/TrainingRole"
REGISTRY = f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com"
NAMES = (
    ACCOUNT,
    "2109-8765-4321",
    "arn:aws",
    "lab-bucket",
    "other.data",
    "TrainingRole",
    "dkr.ecr",
    "/home/jane",
    "jane@",
    "secret-host",
)
CONFIG = {
    "platform": {"bucket": "lab-bucket", "role_arn": ROLE, "region": "eu-west-1"},
    "training": {"hyperparameters": {"owner": int(ACCOUNT), "user": "jane@example.com"}},
    "dataset": {"source": "s3://other.data/train"},
    "report": {"directory": "/home/jane/reports"},
}


@pytest.fixture
def named(make_outcomes, make_outcome, make_report) -> ScalingReport:
    """Return a report with names in every field that takes a text from outside."""
    failed = make_outcome(
        4,
        reason=f"AccessDenied: TrainingRole of 2109-8765-4321 may not read lab-bucket ({ROLE})",
        log_tail=("GET https://lab-bucket.s3.eu-west-1.amazonaws.com/key", "jane@secret-host"),
        output_uri="s3://lab-bucket/nodesweep/out",
    )
    report = make_report(
        [*make_outcomes({1: 40, 2: 21}), failed],
        provenance={"image_uri": f"{REGISTRY}/train@sha256:{'ab' * 32}", "steps": [ACCOUNT]},
    )
    conditions = report.conditions.model_copy(
        update={"image_uri": f"{REGISTRY}/train", "region": "eu-west-1"}
    )
    caveat = (
        f"Read from lab-bucket at {REGISTRY}/x and /home/jane/data with {ROLE} of s3://other.data."
    )
    return report.model_copy(
        update={
            "config": CONFIG,
            "conditions": conditions,
            "title": f"Test in {ACCOUNT}",
            "caveats": (*report.caveats, caveat),
        }
    )


def test_no_name_of_the_account_or_the_machine_is_in_the_page(named):
    page = render_share(named)
    assert [name for name in NAMES if name in page] == []
    assert not re.search(r"(?<!\d)\d{12}(?!\d)", page)
    assert [name for name in NAMES if name not in render_html(named)] == []
    for kept in ("Test in (account)", "Read from (name) at (address) and (path)", LEFT_OUT):
        assert kept in page, kept


def test_the_page_stands_alone(named):
    links = re.findall(r'href="([^"]*)"', render_share(named))
    assert links
    assert [link for link in links if not link.startswith("#")] == []


def test_every_number_stays(named, make_outcomes, make_report):
    shared = without_account_names(named)
    assert (shared.summary, shared.costs, shared.fits) == (named.summary, named.costs, named.fits)
    assert shared.recommendation == named.recommendation
    report = make_report(make_outcomes({1: 40, 2: 21}))
    assert without_account_names(report).headline == report.headline
    assert without_account_names(report).caveats[1:] == report.caveats, (
        "a sentence with 16/32 or 1/N, say"
    )
    assert report.sweep_id in render_share(report)
