"""Fixtures for an engine with a tiny image."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.tests.engine.engine_bench import TIMES, Bench, OneImage, write_image
from sagemaker_emulator.engine.host.ballast import Ballast
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.host.network import Loopback, Network, find_network
from sagemaker_emulator.engine.host.port_lock import training_slot
from sagemaker_emulator.engine.process import engine as process_engine
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.engine.run import exclusive_engine
from sagemaker_emulator.interfaces import JobSpec


@pytest.fixture(autouse=True)
def own_training_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep tests from waiting for a training job of another platform on this machine."""
    slot = functools.partial(training_slot, address=f"\0test-{tmp_path}")
    monkeypatch.setattr(exclusive_engine, "training_slot", slot)


@pytest.fixture
def job() -> JobSpec:
    """A one-node training job."""
    arn = "arn:aws:sagemaker:us-east-1:000000000000:training-job/job-a"
    channels = [
        {
            "ChannelName": "training",
            "DataSource": {"S3DataSource": {"S3DataDistributionType": "ShardedByS3Key"}},
        }
    ]
    return JobSpec(
        job_name="job-a",
        job_arn=arn,
        region="us-east-1",
        image_uri="000000000000.dkr.ecr.us-east-1.amazonaws.com/tiny:1",
        instance_type="ml.local.small",
        instance_count=1,
        hyperparameters={"epochs": "2"},
        environment={},
        input_data_config=channels,
    )


@pytest.fixture(scope="session")
def containment(tmp_path_factory: pytest.TempPathFactory) -> Containment:
    """This machine's containment; probing it starts three processes."""
    return Containment.find(tmp_path_factory.mktemp("containment"))


@pytest.fixture(scope="session")
def network(containment: Containment) -> Network:
    """This machine's network; probing it creates networks."""
    problem = None if containment.has_host_names else containment.opt_ml_problem
    return find_network(7, problem)


@pytest.fixture(params=["contained", "bare"])
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    job: JobSpec,
    containment: Containment,
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    """An engine, with the namespaces that this machine allows and without any.

    Tests that don't depend on namespaces are marked `once`. No ballast uses the idle CPUs.
    """
    monkeypatch.setattr(Ballast, "start", lambda ballast: None)
    monkeypatch.setattr(Containment, "find", lambda scratch: containment)
    monkeypatch.setattr(process_engine, "find_network", lambda block, problem: network)
    image = write_image(tmp_path / "image")
    engine = ProcessEngine(tmp_path / "state", OneImage(image), "http://127.0.0.1:1", times=TIMES)
    if request.param == "bare":
        engine._containment = Containment()
        engine._network = Loopback(7, "nodes run without namespaces")
    bench = Bench(engine, image, job)
    yield bench
    assert bench.alive() == set()
    if engine._quotas:
        assert engine._quotas.groups() == []
    engine.close()
