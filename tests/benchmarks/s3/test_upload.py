"""The benchmarks of uploads and listings: what they count, and which results they reject."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3 import listing, upload
from benchmarks.s3.upload import Bench, empty_bucket, problems, summarise, upload_ours, write_data
from infra.local.tests.platform_client import serve_platform
from nodesweep.aws.platform import aws_client
from nodesweep.tasks.dataset.sending import IN_MEMORY_BYTES, PART_BYTES


def run(wall_seconds: float, **more: int) -> dict[str, Any]:
    return {"wall_seconds": wall_seconds, "cpu_seconds": 1.0, "server_cpu_seconds": 1.0, **more}


RUNS = {
    "ours": [run(1.0), run(2.0), run(1.0)],
    "aws": [run(2.0), run(3.0), run(4.0)],
    "again": [run(0.1, sent_bytes=0, opened=0)],
}


def test_ratios_are_of_pairs_and_without_the_others_start() -> None:
    found = summarise(RUNS, {"aws": [run(0.5)]})
    assert found["ratio"] == {"aws": {"times_as_fast": 1.5, "with_start": 2.0}}
    assert found["median"]["aws"]["wall_seconds"] == 3.0
    assert found["median"]["aws"]["server_share_of_cpu"] == 0.5


def test_a_missed_goal_and_a_second_run_that_reads_are_problems() -> None:
    case = {"runs": RUNS, **summarise(RUNS, {"aws": [run(0.5)]})}
    assert problems({"answers at once": {"cases": {"few": case}}}) == []
    slow = copy.deepcopy(case)
    slow["ratio"]["aws"]["times_as_fast"] = 1.19
    slow["runs"]["again"][0]["opened"] = 1
    first, second = problems({"answers at once": {"cases": {"few": slow}}})
    assert "few: 1.19 " in first and first.endswith(" 1.2")
    assert "few: " in second and "second run" in second
    # there the server's own work is most of it
    [only] = problems({"local platform": {"cases": {"few": slow}}})
    assert only.startswith("local platform, few: ")


def test_ours_sends_all_and_the_second_time_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("nodesweep.tasks.dataset.hashing.SETTLED_SECONDS", -60.0)
    write_data(tmp_path / "data", 3, 100)
    for served in serve_platform(tmp_path / "platform"):
        bench = Bench(served.endpoint, served.state_dir, "platform")
        served.s3.create_bucket(Bucket="data")
        first = upload_ours(bench, tmp_path / "data", "data")
        again = upload_ours(bench, tmp_path / "data", "data")
        assert (first["sent_bytes"], again["sent_bytes"], again["opened"]) == (300, 0, 0)
        assert first["opened"] >= 6  # to hash, and to send
        assert bench.server_cpu_seconds() > 0
        empty_bucket(served.s3, "data")
        assert served.s3.list_buckets()["Buckets"] == []


def test_a_server_that_keeps_nothing_takes_what_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = tmp_path / "server" / "aws-credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    write_data(tmp_path / "data", 3, 100)
    (tmp_path / "data" / "streamed.bin").write_bytes(b"s" * (IN_MEMORY_BYTES + 1))
    (tmp_path / "data" / "large.bin").write_bytes(b"l" * (PART_BYTES + 1))
    with upload.stand_in(tmp_path / "server", 0.01) as (endpoint, pid):
        bench = Bench(endpoint, tmp_path / "server", "chain", pid=pid)
        found = upload_ours(bench, tmp_path / "data", "data")
        assert found["sent_bytes"] == 300 + IN_MEMORY_BYTES + 1 + PART_BYTES + 1
        s3 = aws_client("s3", bench.platform_config("data"))
        with (tmp_path / "data" / "large.bin").open("rb") as stream:
            s3.upload_fileobj(stream, "data", "in-parts")  # as the AWS CLI sends it
        with upload.fresh_bucket(bench, "data") as bucket:
            assert s3.list_objects_v2(Bucket=bucket).get("Contents") is None
        assert bench.server_cpu_seconds() >= 0


@pytest.mark.slow
def test_listings_find_every_object() -> None:
    found = listing.compare(objects=1500, delay_seconds=0.0, repeats=1)
    assert {run["objects"] for some in found["runs"].values() for run in some} == {1500}
    assert set(found["median_wall_seconds"]) == {"ours", "versions", "in_order"}


def test_the_goal_is_the_issues() -> None:
    assert upload.CASES == {"10 x 49 MB": (10, 49_000_000), "2,000 x 6 kB": (2000, 6000)}
