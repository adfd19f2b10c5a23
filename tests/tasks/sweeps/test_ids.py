"""Runs of one config that begin in one second have sweeps of their own, and each finds its own
again.
"""

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
from nodesweep.aws.storage import put_bytes
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RunFailed
from nodesweep.polling import Clock
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.ids import claim_new_sweep_id, claimed_sweep_id
from nodesweep.tasks.sweeps.records import latest_sweep

STARTED = datetime(2026, 11, 22, 23, 59, 58, 700_000, tzinfo=UTC)
NO_WAIT = Clock(wait=lambda seconds: False)


@pytest.fixture
def s3(aws: Callable[[str], Any], benchmark_config: BenchmarkConfig) -> Any:
    client = aws("s3")
    client.create_bucket(Bucket=benchmark_config.platform.bucket)
    return client


def test_runs_of_one_second_have_ids_of_their_own(
    s3: Any, benchmark_config: BenchmarkConfig
) -> None:
    taken = [
        claim_new_sweep_id(s3, benchmark_config, STARTED, f"run-{number}") for number in range(5)
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


def test_run_that_is_tried_again_has_its_own_id(s3: Any, benchmark_config: BenchmarkConfig) -> None:
    assert claimed_sweep_id(s3, benchmark_config, STARTED, "first") is None
    first, second = (
        claim_new_sweep_id(s3, benchmark_config, STARTED, run) for run in ("first", "second")
    )
    assert first != second
    assert claim_new_sweep_id(s3, benchmark_config, STARTED, "second") == second
    assert claimed_sweep_id(s3, benchmark_config, STARTED, "second") == second
    assert claimed_sweep_id(s3, benchmark_config, STARTED, "first") == first
    assert claimed_sweep_id(s3, benchmark_config, STARTED, "third") is None


def test_sweep_that_began_after_the_clock_was_set_back_has_the_older_id(
    s3: Any, benchmark_config: BenchmarkConfig
) -> None:
    """An id is made of the time, and the latest sweep is the one whose id says so."""
    platform = benchmark_config.platform
    first, second = (
        claim_new_sweep_id(s3, benchmark_config, started, run)
        for started, run in ((STARTED, "first"), (STARTED - timedelta(hours=1), "second"))
    )
    for sweep in (first, second):
        put_bytes(s3, platform.bucket, names.sweep_config_key(platform.prefix, sweep), b"{}")
    assert latest_sweep(s3, benchmark_config) == first


def test_other_configs_do_not_share_their_seconds(
    s3: Any, benchmark_config: BenchmarkConfig, make_config: Callable[..., BenchmarkConfig]
) -> None:
    other = make_config(training={"seed": 7})
    ids = [claim_new_sweep_id(s3, config, STARTED, "run") for config in (benchmark_config, other)]
    assert [sweep.split("-")[1] for sweep in ids] == ["20261122235958"] * 2 and len(set(ids)) == 2


def test_claim_whose_answer_was_lost_is_the_runs_own(
    s3: Any, benchmark_config: BenchmarkConfig
) -> None:
    """boto3 sends it again, and S3 refuses the second one."""
    real, sent = s3.put_object, []

    def twice(**request: Any) -> Any:
        sent.append(request["Key"])
        real(**request)
        return real(**request)

    lossy = SimpleNamespace(put_object=twice, get_object=s3.get_object, exceptions=s3.exceptions)
    assert claim_new_sweep_id(lossy, benchmark_config, STARTED, "run").startswith(
        "bench-20261122235958-"
    )
    assert len(sent) == 1


def test_two_that_write_at_once_and_are_both_refused_try_again(
    s3: Any, benchmark_config: BenchmarkConfig
) -> None:
    conflict = s3.exceptions.ClientError(
        {"Error": {"Code": "ConditionalRequestConflict"}}, "PutObject"
    )
    refusals = [conflict] * 3

    def refused_at_first(**request: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return s3.put_object(**request)

    busy = SimpleNamespace(
        put_object=refused_at_first, get_object=s3.get_object, exceptions=s3.exceptions
    )
    sweep = claim_new_sweep_id(busy, benchmark_config, STARTED, "run", NO_WAIT)
    assert sweep.startswith("bench-20261122235958-") and not refusals
    refusals[:] = [conflict] * 100
    with pytest.raises(s3.exceptions.ClientError, match="ConditionalRequestConflict"):
        claim_new_sweep_id(busy, benchmark_config, STARTED, "another", NO_WAIT)


def test_ids_end_with_a_message(
    s3: Any, benchmark_config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodesweep.tasks.sweeps.ids, "_MOST_SECONDS", 2)
    for run in ("a", "b"):
        claim_new_sweep_id(s3, benchmark_config, STARTED, run)
    with pytest.raises(RunFailed, match=r"2 runs .* 2026-11-22"):
        claim_new_sweep_id(s3, benchmark_config, STARTED, "c")
    assert claimed_sweep_id(s3, benchmark_config, STARTED, "c") is None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    yield from serve_platform(tmp_path_factory.mktemp("platform"))


def test_local_platform_lets_one_of_many_at_once_have_the_id(
    served: SimpleNamespace, benchmark_config: BenchmarkConfig, tmp_path: Path
) -> None:
    served.s3.create_bucket(Bucket=benchmark_config.platform.bucket)
    runs = [f"run-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(runs)) as pool:
        taken = list(
            pool.map(
                lambda run: claim_new_sweep_id(served.s3, benchmark_config, STARTED, run, NO_WAIT),
                runs,
            )
        )
    assert len(set(taken)) == len(runs)
    for run, sweep in zip(runs, taken, strict=True):
        key = names.run_claim_key(benchmark_config.platform.prefix, sweep)
        body = served.s3.get_object(Bucket=benchmark_config.platform.bucket, Key=key)["Body"].read()
        assert json.loads(body) == {"run": run, "sweep_id": sweep}
