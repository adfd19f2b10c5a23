"""Runs of one config that begin in the same second have separate sweeps, and each finds its own
again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nodesweep.tasks.sweeps.ids
from infra.local.tests.platform_client import serve_platform
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RunFailed
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.ids import claim_sweep_id, claimed_sweep_id
from nodesweep.tasks.sweeps.records import Sweeps, latest_sweep

STARTED = datetime(2026, 11, 22, 23, 59, 58, 700_000, tzinfo=UTC)


def test_runs_of_one_second_have_ids_of_their_own(
    store: Store, benchmark_config: BenchmarkConfig
) -> None:
    taken = [
        claim_sweep_id(Sweeps(store, benchmark_config), STARTED, f"run-{number}")
        for number in range(5)
    ]
    seconds = (
        "20261122235958",
        "20261122235959",
        "20261123000000",
        "20261123000001",
        "20261123000002",
    )
    assert taken == [
        f"bench-{second}-{names.config_digest(benchmark_config)[:8]}" for second in seconds
    ]
    assert all(names.sweep_matches(sweep, benchmark_config) for sweep in taken)


def test_run_that_is_tried_again_has_its_own_id(
    store: Store, benchmark_config: BenchmarkConfig
) -> None:
    assert claimed_sweep_id(Sweeps(store, benchmark_config), STARTED, "first") is None
    first, second = (
        claim_sweep_id(Sweeps(store, benchmark_config), STARTED, run) for run in ("first", "second")
    )
    assert first != second
    assert claim_sweep_id(Sweeps(store, benchmark_config), STARTED, "second") == second
    assert claimed_sweep_id(Sweeps(store, benchmark_config), STARTED, "second") == second
    assert claimed_sweep_id(Sweeps(store, benchmark_config), STARTED, "first") == first
    assert claimed_sweep_id(Sweeps(store, benchmark_config), STARTED, "third") is None


def test_sweep_that_began_after_the_clock_was_set_back_has_the_older_id(
    store: Store, benchmark_config: BenchmarkConfig
) -> None:
    """An ID contains the time, and the latest sweep is the one with the latest ID."""
    first, second = (
        claim_sweep_id(Sweeps(store, benchmark_config), started, run)
        for started, run in ((STARTED, "first"), (STARTED - timedelta(hours=1), "second"))
    )
    for sweep in (first, second):
        store.put(names.sweep_config_key(store.prefix, sweep), b"{}")
    assert latest_sweep(Sweeps(store, benchmark_config)) == first


def test_other_configs_do_not_share_their_seconds(
    store: Store, benchmark_config: BenchmarkConfig, make_config: Callable[..., BenchmarkConfig]
) -> None:
    other = make_config(training={"seed": 7})
    ids = [
        claim_sweep_id(Sweeps(store, config), STARTED, "run")
        for config in (benchmark_config, other)
    ]
    assert [sweep.split("-")[1] for sweep in ids] == ["20261122235958"] * 2 and len(set(ids)) == 2


def test_claim_whose_answer_was_lost_is_the_runs_own(
    aws: Callable[[str], Any], benchmark_config: BenchmarkConfig
) -> None:
    """boto3 repeats the call, and S3 refuses the second one."""
    s3, sent = aws("s3"), []
    s3.create_bucket(Bucket=benchmark_config.platform.bucket)

    def twice(**request: Any) -> Any:
        sent.append(request["Key"])
        s3.put_object(**request)
        return s3.put_object(**request)

    lossy = SimpleNamespace(put_object=twice, get_object=s3.get_object, exceptions=s3.exceptions)
    store = BucketStore(benchmark_config.platform, client=lossy)
    assert claim_sweep_id(Sweeps(store, benchmark_config), STARTED, "run").startswith(
        "bench-20261122235958-"
    )
    assert len(sent) == 1


def test_ids_end_with_a_message(
    store: Store, benchmark_config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodesweep.tasks.sweeps.ids, "_MOST_SECONDS", 2)
    for run in ("a", "b"):
        claim_sweep_id(Sweeps(store, benchmark_config), STARTED, run)
    with pytest.raises(RunFailed, match=r"2 runs .* 2026-11-22"):
        claim_sweep_id(Sweeps(store, benchmark_config), STARTED, "c")
    assert claimed_sweep_id(Sweeps(store, benchmark_config), STARTED, "c") is None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    yield from serve_platform(tmp_path_factory.mktemp("platform"))


def test_local_platform_lets_one_of_many_at_once_have_the_id(
    served: SimpleNamespace, benchmark_config: BenchmarkConfig, tmp_path: Path
) -> None:
    served.s3.create_bucket(Bucket=benchmark_config.platform.bucket)
    store = BucketStore(benchmark_config.platform, client=served.s3)
    runs = [f"run-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(runs)) as pool:
        taken = list(
            pool.map(
                lambda run: claim_sweep_id(Sweeps(store, benchmark_config), STARTED, run),
                runs,
            )
        )
    assert len(set(taken)) == len(runs)
    for run, sweep in zip(runs, taken, strict=True):
        key = names.run_claim_key(benchmark_config.platform.prefix, sweep)
        body = served.s3.get_object(Bucket=benchmark_config.platform.bucket, Key=key)["Body"].read()
        assert json.loads(body) == {"run": run, "sweep_id": sweep}
