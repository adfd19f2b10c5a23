from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import Stubber

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import Store
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import ScalingReport, analyse
from nodesweep.scaling.trend.history import parse_history
from nodesweep.tasks.report.history import (
    list_benchmarks,
    put_history,
    read_history_files,
)

SWEEPS = ("bench-20260102030405-0a1b2c3d", "bench-20260105030405-0a1b2c3d")


def report_of(sweep: str, seconds: float = 80.0) -> ScalingReport:
    outcome = JobOutcome(
        nodes=1, repeat=1, attempt=1, job_name=f"{sweep}-n1-r1-a1-abcd", status="Completed",
        platform_kind="aws",
        clocks=Clocks(train_seconds=seconds), train_clock="program",
    )  # fmt: skip
    return analyse(sweep, None, None, [outcome], None, {}, datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture
def s3(aws: Callable[[str], Any]) -> Any:
    client = aws("s3")
    client.create_bucket(Bucket="bench-bucket")
    return client


def test_sweep_lies_in_its_benchmarks_partition(store: Store) -> None:
    uri = put_history(store, [report_of(SWEEPS[0])], "bench")
    assert uri == store.uri(f"nodesweep/history/v1/benchmark=bench/{SWEEPS[0]}.parquet")
    [(found, body)] = read_history_files(store, "bench").items()
    assert found == uri
    assert list(parse_history(body, uri)["sweep_id"]) == [SWEEPS[0]]


def test_second_append_replaces_the_sweep(store: Store) -> None:
    for seconds in (80.0, 70.0):
        put_history(store, [report_of(SWEEPS[0], seconds)], "bench")
    [body] = read_history_files(store, "bench").values()
    assert list(parse_history(body, "it")["train_seconds"]) == [70.0]


def test_only_the_benchmarks_own_files_are_read(store: Store) -> None:
    for benchmark, sweep in (("bench", SWEEPS[1]), ("bench", SWEEPS[0]), ("bench-2", SWEEPS[0])):
        put_history(store, [report_of(sweep)], benchmark)
    store.put("nodesweep/history/v1/benchmark=bench/notes.txt", b"x")
    assert [uri.rpartition("/")[2] for uri in read_history_files(store, "bench")] == [
        f"{sweep}.parquet" for sweep in SWEEPS
    ]
    assert read_history_files(store, "other") == {}
    assert list_benchmarks(store) == ["bench", "bench-2"]


def test_a_listing_of_several_pages_is_read_to_its_end(
    s3: Any, platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")  # S3's pages hold 1000 keys
    for number in range(5):
        for benchmark in ("bench", f"bench-{number}"):
            key = f"nodesweep/history/v1/benchmark={benchmark}/{number}.parquet"
            s3.put_object(Bucket="bench-bucket", Key=key, Body=b"x")
    store = BucketStore(platform, client=s3)
    assert len(read_history_files(store, "bench")) == 5
    assert len(list_benchmarks(store)) == 6


def test_without_a_bucket_there_is_no_history(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    store = BucketStore(platform, client=aws("s3"))
    assert read_history_files(store, "bench") == {}
    assert list_benchmarks(store) == []


def test_bucket_that_may_not_be_listed_is_an_error(s3: Any, platform: PlatformConfig) -> None:
    with Stubber(s3) as refused:
        refused.add_client_error("list_objects_v2", "AccessDenied")
        with pytest.raises(s3.exceptions.ClientError, match="AccessDenied"):
            read_history_files(BucketStore(platform, client=s3), "bench")
