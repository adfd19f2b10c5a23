"""Simulated Processing jobs: their times follow the model, their output is configured, and without
a configuration they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import serve_simulated, wait_until
from infra.local.tests.processing.processing_requests import (
    cluster,
    log_of,
    processing_request,
    run_job,
    s3_input,
    s3_output,
    texts_below,
    wait_for_end,
)

MODEL = {
    "startup_seconds": 100,
    "download_seconds": 20,
    "processing_seconds": 300,
    "upload_seconds": 5,
}
FAULTS = [
    {"fault": "pending", "jobs": "late", "seconds": 1000},
    {"fault": "capacity_error", "jobs": "starved", "seconds": 1800},
    {"fault": "internal_error", "jobs": "lost", "after_seconds": 120},
    {"fault": "algorithm_error", "jobs": "killed", "at_line": "nothing runs", "node": "algo-2"},
    {"fault": "internal_error", "jobs": "spared", "after_seconds": 301},
]


def test_a_processing_job_without_outputs_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with contextmanager(serve_simulated)(tmp_path) as served:
        with pytest.raises(ClientError) as caught:
            served.sagemaker.create_processing_job(**processing_request("none"))
        assert "--engine process" in str(caught.value)
        assert "--processing-leaves DIR" in str(caught.value)
        assert served.sagemaker.list_processing_jobs()["ProcessingJobSummaries"] == []


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    leaves = tmp_path_factory.mktemp("leaves")
    (leaves / "processing" / "output" / "out").mkdir(parents=True)
    (leaves / "processing" / "output" / "out" / "verdict.json").write_text("good")
    (leaves / "output").mkdir()
    (leaves / "output" / "message").write_text("36 of 36 hold")
    served = contextmanager(serve_simulated)(
        tmp_path_factory.mktemp("state"), FAULTS, MODEL, processing_leaves=leaves
    )
    with served as platform:
        platform.s3.create_bucket(Bucket="rows")
        platform.s3.put_object(Bucket="rows", Key="in/a.csv", Body=b"row a")
        yield platform


def simulated(platform: SimpleNamespace, name: str, **changes: Any) -> dict[str, Any]:
    """A simulated job on two nodes that has ended."""
    whole = {
        "ProcessingResources": cluster(2),
        "ProcessingInputs": [s3_input("rows", "s3://rows/in")],
        "ProcessingOutputConfig": {"Outputs": [s3_output("out", f"s3://results/{name}")]},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }
    return run_job(platform, name, **{**whole, **changes})


def lengths(job: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds until the instances were available, and the seconds afterwards."""
    created, start, end = (
        job[f"{name}Time"] for name in ("Creation", "ProcessingStart", "ProcessingEnd")
    )
    return (start - created).total_seconds(), (end - start).total_seconds()


def test_its_times_are_the_models_and_its_outputs_those_that_were_given(
    platform: SimpleNamespace,
) -> None:
    job = simulated(platform, "whole")
    assert (job["ProcessingJobStatus"], job["ExitMessage"]) == ("Completed", "36 of 36 hold")
    assert lengths(job) == (pytest.approx(100, abs=0.5), pytest.approx(325, abs=0.5))
    assert texts_below(platform.s3, "results", "whole/") == {"verdict.json": "good"}
    [line] = log_of(platform, "whole", "algo-1")
    assert line.startswith("[simulated]") and "2 nodes" in line and "300 s" in line


def test_faults_go_by_the_virtual_clock(platform: SimpleNamespace) -> None:
    assert lengths(simulated(platform, "late"))[0] == pytest.approx(1100, abs=0.5)
    starved = simulated(platform, "starved")
    assert starved["FailureReason"].startswith("CapacityError: ")
    assert "ProcessingStartTime" not in starved
    waited = (starved["ProcessingEndTime"] - starved["CreationTime"]).total_seconds()
    assert waited == pytest.approx(1900, abs=0.5)
    lost = simulated(platform, "lost")
    assert lost["FailureReason"].startswith("InternalServerError: ")
    assert lengths(lost)[1] == pytest.approx(140, abs=0.5)
    killed = simulated(platform, "killed")
    assert killed["FailureReason"].startswith("AlgorithmError: algo-2 ")
    assert "ExitMessage" not in killed
    assert simulated(platform, "spared")["ProcessingJobStatus"] == "Completed"
    left = [texts_below(platform.s3, "results", f"{name}/") for name in ("starved", "lost")]
    assert left == [{}, {}]


def test_the_longest_runtime_and_a_missing_input_leave_no_outputs(
    platform: SimpleNamespace,
) -> None:
    job = simulated(platform, "long", StoppingCondition={"MaxRuntimeInSeconds": 299})
    assert job["ProcessingJobStatus"] == "Stopped"
    assert job["FailureReason"].startswith("Processing job runtime exceeded")
    gone = simulated(platform, "gone", ProcessingInputs=[s3_input("rows", "s3://rows/none")])
    assert gone["FailureReason"].startswith("ClientError: Data download failed:")
    assert [texts_below(platform.s3, "results", f"{name}/") for name in ("long", "gone")] == [
        {},
        {},
    ]


def test_an_output_that_was_not_given_is_refused(platform: SimpleNamespace) -> None:
    other = {"Outputs": [s3_output("other", "s3://results/other")]}
    with pytest.raises(ClientError, match="processing/output/other"):
        platform.sagemaker.create_processing_job(
            **processing_request("other", ProcessingOutputConfig=other)
        )


def test_a_stop_leaves_no_outputs(tmp_path: Path) -> None:
    leaves = tmp_path / "leaves" / "processing" / "output" / "out"
    leaves.mkdir(parents=True)
    (leaves / "verdict.json").write_text("good")
    state = tmp_path / "state"
    state.mkdir()
    with contextmanager(serve_simulated)(
        state, model={"startup_seconds": 0}, time_scale=1.0, processing_leaves=tmp_path / "leaves"
    ) as served:
        sagemaker = served.sagemaker
        outputs = {"Outputs": [s3_output("out", "s3://results/stopped")]}
        sagemaker.create_processing_job(
            **processing_request("stopped", ProcessingOutputConfig=outputs)
        )
        wait_until(
            lambda: (
                "ProcessingStartTime"
                in sagemaker.describe_processing_job(ProcessingJobName="stopped")
            )
        )
        sagemaker.stop_processing_job(ProcessingJobName="stopped")
        assert wait_for_end(sagemaker, "stopped")["ProcessingJobStatus"] == "Stopped"
        assert texts_below(served.s3, "results", "stopped/") == {}
