from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.claims import (
    Claim,
    claim_job,
    mark_sweep_stopped,
    read_claims,
    read_stop_mark,
    read_validation_claims,
    withdraw_claim,
)

SWEEP, OTHER = "bench-20260102030405-0a1b2c3d", "bench-20260102030406-0a1b2c3d"
JOB, FURTHER = (names.job_name(SWEEP, nodes, 1, 1, "abcd") for nodes in (1, 2))


@pytest.fixture
def bucket(aws: Callable[[str], Any], platform: PlatformConfig) -> BucketStore:
    client = aws("s3")
    client.create_bucket(Bucket=platform.bucket)
    return BucketStore(platform, client=client)


def test_claims_of_all_runs_are_one_record_of_the_sweeps_jobs(store: Store) -> None:
    assert claim_job(store, SWEEP, JOB, "one", with_others=True) == Claim(frozenset({JOB}), None)
    assert claim_job(store, SWEEP, FURTHER, "other", with_others=True).jobs == {JOB, FURTHER}
    assert claim_job(store, SWEEP, FURTHER, "other").jobs == {FURTHER}, (
        "where no limit asks for the others'"
    )
    assert read_claims(store, OTHER) == frozenset()


def test_a_claim_is_withdrawn_only_by_its_own_run(store: Store) -> None:
    for claimant in ("one", "other"):
        claim_job(store, SWEEP, JOB, claimant)
    withdraw_claim(store, SWEEP, JOB, "one")
    assert read_claims(store, SWEEP) == {JOB}
    withdraw_claim(store, SWEEP, JOB, "other")
    withdraw_claim(store, SWEEP, JOB, "other")
    assert read_claims(store, SWEEP) == frozenset()


@pytest.mark.parametrize(
    "stray", ["", ".DS_Store", "one/", "one/.DS_Store", "one/notes.json", f"one/{OTHER}-n1.json"]
)
def test_a_stray_object_below_the_claims_is_no_job(bucket: BucketStore, stray: str) -> None:
    claim_job(bucket, SWEEP, JOB, "one")
    bucket.put(names.claims_prefix(bucket.prefix, SWEEP) + stray, b"")
    assert read_claims(bucket, SWEEP) == {JOB}
    assert claim_job(bucket, SWEEP, FURTHER, "two", with_others=True).jobs == {JOB, FURTHER}


@pytest.mark.parametrize("stray", ["", "notes/", "1-0123abcd", "1/x"])
def test_a_stray_object_beside_the_validations_is_no_job(bucket: BucketStore, stray: str) -> None:
    name = names.validation_job_name(SWEEP, 1, "0123abcdef")
    bucket.put(names.validation_request_key(bucket.prefix, SWEEP, name), b"{}")
    bucket.put(names.validation_claims_prefix(bucket.prefix, SWEEP) + stray, b"")
    assert read_validation_claims(bucket, SWEEP) == [name]


def test_a_claim_comes_with_the_mark_of_the_last_stop_and_each_stop_is_another(
    store: Store,
) -> None:
    mark_sweep_stopped(store, SWEEP)
    first = claim_job(store, SWEEP, JOB, "one").stop_mark
    mark_sweep_stopped(store, SWEEP)
    second = read_stop_mark(store, SWEEP)
    assert first is not None and second is not None and first != second


def test_claiming_the_thousandth_job_reads_no_more_than_the_first(
    bucket: BucketStore,
) -> None:
    """A run does not list its own claims, since the number that a sweep reads would grow
    quadratically."""
    for nodes in range(1, 6):
        claim_job(bucket, SWEEP, names.job_name(SWEEP, nodes, 1, 1, "abcd"), "one")
    answers: list[dict[str, Any]] = []
    bucket.client.meta.events.register(
        "after-call.s3.ListObjectsV2", lambda parsed, **_: answers.append(parsed)
    )
    assert claim_job(bucket, SWEEP, JOB, "one", with_others=True).jobs == {JOB}
    assert [answer.get("Contents", []) for answer in answers] == [[]]


def test_without_a_bucket_nothing_is_claimed(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    assert read_claims(BucketStore(platform, client=aws("s3")), SWEEP) == frozenset()
