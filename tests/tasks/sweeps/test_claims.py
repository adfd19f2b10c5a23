from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.processing import claimed_jobs
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.claims import (
    Claim,
    claim_job,
    mark_sweep_stopped,
    read_claims,
    read_stop_mark,
    withdraw_claim,
)

SWEEP, OTHER = "bench-20260102030405-0a1b2c3d", "bench-20260102030406-0a1b2c3d"
JOB, FURTHER = (names.job_name(SWEEP, nodes, 1, 1, "abcd") for nodes in (1, 2))


@pytest.fixture
def s3(aws: Callable[[str], Any], platform: PlatformConfig) -> Iterator[Any]:
    aws_client.cache_clear()  # a client made outside the mocked account would not be mocked
    client = aws("s3")
    client.create_bucket(Bucket=platform.bucket)
    yield client
    aws_client.cache_clear()


def test_claims_of_all_runs_are_one_record_of_the_sweeps_jobs(
    s3: Any, platform: PlatformConfig
) -> None:
    assert claim_job(platform, SWEEP, JOB, "one", with_others=True) == Claim(frozenset({JOB}), None)
    assert claim_job(platform, SWEEP, FURTHER, "other", with_others=True).jobs == {JOB, FURTHER}
    assert claim_job(platform, SWEEP, FURTHER, "other").jobs == {FURTHER}, (
        "where no limit asks for the others'"
    )
    assert read_claims(s3, platform, OTHER) == frozenset()


def test_a_claim_is_withdrawn_only_by_its_own_run(s3: Any, platform: PlatformConfig) -> None:
    for claimant in ("one", "other"):
        claim_job(platform, SWEEP, JOB, claimant)
    withdraw_claim(platform, SWEEP, JOB, "one")
    assert read_claims(s3, platform, SWEEP) == {JOB}
    withdraw_claim(platform, SWEEP, JOB, "other")
    withdraw_claim(platform, SWEEP, JOB, "other")
    assert read_claims(s3, platform, SWEEP) == frozenset()


@pytest.mark.parametrize(
    "stray", ["", ".DS_Store", "one/", "one/.DS_Store", "one/notes.json", f"one/{OTHER}-n1.json"]
)
def test_a_stray_object_below_the_claims_is_no_job(
    s3: Any, platform: PlatformConfig, stray: str
) -> None:
    claim_job(platform, SWEEP, JOB, "one")
    key = names.claims_prefix(platform.prefix, SWEEP) + stray
    s3.put_object(Bucket=platform.bucket, Key=key, Body=b"")
    assert read_claims(s3, platform, SWEEP) == {JOB}
    assert claim_job(platform, SWEEP, FURTHER, "two", with_others=True).jobs == {JOB, FURTHER}


@pytest.mark.parametrize("stray", ["", "notes/", "1-0123abcd", "1/x"])
def test_a_stray_object_beside_the_validations_is_no_job(
    s3: Any, platform: PlatformConfig, stray: str
) -> None:
    name = names.validation_job_name(SWEEP, 1, "0123abcdef")
    key = names.validation_request_key(platform.prefix, SWEEP, name)
    s3.put_object(Bucket=platform.bucket, Key=key, Body=b"{}")
    prefix = names.validation_claims_prefix(platform.prefix, SWEEP)
    s3.put_object(Bucket=platform.bucket, Key=prefix + stray, Body=b"")
    assert claimed_jobs(s3, platform, SWEEP) == [name]


def test_a_claim_comes_with_the_mark_of_the_last_stop_and_each_stop_is_another(
    s3: Any, platform: PlatformConfig
) -> None:
    mark_sweep_stopped(platform, SWEEP)
    first = claim_job(platform, SWEEP, JOB, "one").stop_mark
    mark_sweep_stopped(platform, SWEEP)
    second = read_stop_mark(s3, platform, SWEEP)
    assert first is not None and second is not None and first != second


def test_claiming_the_thousandth_job_reads_no_more_than_the_first(
    s3: Any, platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one's own claims nothing is listed: a sweep would read a number of them that grows with
    its square.
    """
    for nodes in range(1, 6):
        claim_job(platform, SWEEP, names.job_name(SWEEP, nodes, 1, 1, "abcd"), "one")
    answers: list[dict[str, Any]] = []
    client = aws_client("s3", platform)
    client.meta.events.register(
        "after-call.s3.ListObjectsV2", lambda parsed, **_: answers.append(parsed)
    )
    assert claim_job(platform, SWEEP, JOB, "one", with_others=True).jobs == {JOB}
    assert [answer.get("Contents", []) for answer in answers] == [[]]


def test_without_a_bucket_nothing_is_claimed(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    assert read_claims(aws("s3"), platform, SWEEP) == frozenset()
