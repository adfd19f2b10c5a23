"""The reaper on the served platform: the jobs that it stops, and those that it only reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from prefect.exceptions import ParameterTypeError

import nodesweep.flows.reaper
import nodesweep.tasks.sweeps.orphans
from infra.local.tests.platform_client import wait_for_end
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.reaper import reaper
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.owner import Heartbeat, owned, read_heartbeat

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


@pytest.fixture
def abandoned(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> tuple[PlatformConfig, str]:
    """Start a job of a sweep whose owner has disappeared, and return (platform, job)."""
    config = pipeline_config("endless", name="abandoned", sweep={"node_counts": [1]})
    sweep = start_detached_sweep(config)
    with owned(
        BucketStore(config.platform), sweep.sweep_id
    ):  # somebody took it over, and went away
        pass
    monkeypatch.setattr(
        nodesweep.flows.reaper,
        "backend_from_parameters",
        lambda parameters: backend_of(config.platform),
    )
    (job,) = sweep.job_names
    return config.platform, job


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Age the sign of life of every owner by this much."""

    def read(store: Store, sweep: str) -> Heartbeat | None:
        sign = read_heartbeat(store, sweep)
        return sign and replace(sign, written_at=sign.written_at - timedelta(seconds=seconds))

    monkeypatch.setattr(nodesweep.tasks.sweeps.orphans, "read_heartbeat", read)


def test_reaper_stops_a_job_once_its_owner_has_been_silent_for_the_grace(
    abandoned: tuple[PlatformConfig, str], served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, job = abandoned
    sign = read_heartbeat(BucketStore(platform, client=served.s3), names.sweep_of_job(job) or "")
    assert sign is not None and 0 <= sign.age_seconds < 20 * 60
    assert job not in reaper(grace_minutes=20)
    later(monkeypatch, 1201)
    assert job in reaper(grace_minutes=20, dry_run=True)
    assert (
        served.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobStatus"]
        == "InProgress"
    )
    assert job in reaper(grace_minutes=20)
    assert wait_for_end(served.sagemaker, job)["TrainingJobStatus"] == "Stopped"


def test_reaper_ends_the_warm_pools_of_a_sweep_that_nobody_runs(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs have ended, but their pools are billed until their keep-alive is over."""
    config = pipeline_config(
        "scaling",
        name="poolreaped",
        training={"keep_alive_seconds": 3600},
        sweep={"node_counts": [1]},
    )
    sweep = start_detached_sweep(config)
    (job,) = sweep.job_names
    with owned(BucketStore(config.platform), sweep.sweep_id):
        wait_for_end(served.sagemaker, job)
    monkeypatch.setattr(
        nodesweep.flows.reaper,
        "backend_from_parameters",
        lambda parameters: backend_of(config.platform),
    )

    def pool() -> str:
        return str(
            served.sagemaker.describe_training_job(TrainingJobName=job)["WarmPoolStatus"]["Status"]
        )

    assert job not in reaper(grace_minutes=20) and pool() == "Available"
    later(monkeypatch, 1201)
    reaper(grace_minutes=20)
    assert pool() == "Terminated"


def test_grace_below_twenty_minutes_is_refused() -> None:
    """A run waits up to 15 minutes for a platform that does not respond, and gives no sign of life
    meanwhile."""
    with pytest.raises(ParameterTypeError, match="grace_minutes"):
        reaper(grace_minutes=19)
