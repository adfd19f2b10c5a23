"""share.html: nothing in it names an account or a thing in one, whatever the report says where."""

from __future__ import annotations

import re

import pytest

from scaling.report.model import ScalingReport
from scaling.report.render import render_html, render_share
from scaling.report.share import without_account

ACCOUNT = "210987654321"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/team/TrainingRole"
REGISTRY = f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com"
SECRETS = (
    ACCOUNT,
    "2109-8765-4321",
    "arn:aws",
    "lab-bucket",
    "other.data",
    "TrainingRole",
    "dkr.ecr",
)
CONFIG = {
    "platform": {"bucket": "lab-bucket", "role_arn": ROLE, "region": "eu-west-1"},
    "training": {"hyperparameters": {"owner": int(ACCOUNT), "sync": True, "epochs": 2}},
    "tags": {ACCOUNT: "costs"},
    "dataset": {"source": "s3://other.data/train"},
}


@pytest.fixture
def named(make_outcomes, make_outcome, make_report) -> ScalingReport:
    """A report with names in every place that takes a text from outside."""
    failed = make_outcome(
        4,
        reason=f"AccessDenied: TrainingRole of 2109-8765-4321 may not read lab-bucket ({ROLE})",
        log_tail=(
            "GET https://lab-bucket.s3.eu-west-1.amazonaws.com/key",
            f"assumed arn:aws:sts::{ACCOUNT}:assumed-role/Other/me, then Other failed",
        ),
        output_uri="s3://lab-bucket/nodesweep/out",
    )
    report = make_report(
        [*make_outcomes({1: 40, 2: 21}), failed],
        provenance={"image_uri": f"{REGISTRY}/train@sha256:{'ab' * 32}", "steps": [ACCOUNT]},
    )
    conditions = report.conditions.model_copy(
        update={"image_uri": f"{REGISTRY}/train", "region": "eu-west-1"}
    )
    return report.model_copy(
        update={"config": CONFIG, "conditions": conditions, "title": f"Test in {ACCOUNT}"}
    )


def test_no_name_of_the_account_is_in_the_page(named):
    page = render_share(named)
    assert [name for name in (*SECRETS, "assumed-role", "Other failed") if name in page] == []
    assert not re.search(r"(?<!\d)\d{12}(?!\d)", page)
    assert [name for name in SECRETS if name not in render_html(named)] == []
    for kept in ("(account)", "(arn)", "(bucket)", "(registry)/train", "(role)", "AccessDenied"):
        assert kept in page, kept


def test_the_page_stands_alone(named):
    links = re.findall(r'href="([^"]*)"', render_share(named))
    assert links
    assert [link for link in links if not link.startswith("#")] == []


def test_what_names_nothing_stays_as_it_is(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}))
    assert without_account(report) == report
    assert report.sweep_id in render_share(report)


def test_a_bucket_called_like_a_word_of_the_report_breaks_nothing(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}, output_uri="s3://aws/out"))
    shared = without_account(report)
    assert shared.platform.kind == "aws"
    assert {point.output_uri for point in shared.points} == {"s3://(bucket)/out"}
