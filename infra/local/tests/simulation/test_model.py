"""The performance model: the parts of its formula by hand, and the messages about unusable
models."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from sagemaker_emulator.api.protocol import ApiError
from sagemaker_emulator.settings import SettingsError
from sagemaker_emulator.simulation.model import (
    PerformanceModel,
    model_of_job,
    plan_workload,
    read_model,
    step_seconds,
)
from tests.plain import plain

MODEL = PerformanceModel(
    t_compute_seconds=1000,
    samples=100_000,
    serial_share=0.2,
    gradient_bytes=8e8,
    bandwidth_bytes_per_second=1e9,
    latency_seconds=0.001,
    noise_sigma=0,
    global_batch_size=1000,
)


@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        (1, 10.0),  # 1000 s * 1000 / 100000, no all-reduce
        (4, 10 * (0.2 + 0.8 / 4) + 2 * 3 / 4 * 0.8 + 2 * 3 * 0.001),
    ],
)
def test_step_time(nodes: int, seconds: float) -> None:
    assert step_seconds(MODEL, nodes, 1000) == pytest.approx(seconds)


def test_compute_grows_with_the_batch_and_the_all_reduce_does_not() -> None:
    assert step_seconds(MODEL, 2, 3000) - step_seconds(MODEL, 2, 1000) == pytest.approx(
        20 * (0.2 + 0.8 / 2)
    )


def test_train_time_at_one_node_is_the_models() -> None:
    work = plan_workload(MODEL, "a", 1, {})
    assert (work.steps, work.train_seconds) == (100, pytest.approx(1000))


@pytest.mark.parametrize(
    ("hyperparameters", "nodes", "expected"),
    [
        ({}, 4, (1, 1000, 250, 100)),
        ({"global-batch-size": "500"}, 4, (1, 500, 125, 200)),
        ({"global_batch_size": '"500"'}, 4, (1, 500, 125, 200)),
        ({"per-replica-batch-size": "100"}, 4, (1, 400, 100, 250)),
        ({"global-batch-size": "800", "per-replica-batch-size": "25"}, 4, (8, 800, 25, 125)),
        ({"global-batch-size": "800", "per-replica-batch-size": "33"}, 4, (1, 800, 33, 125)),
        ({"max-steps": "7"}, 1, (1, 1000, 1000, 7)),
        ({"max-steps": "0", "global-batch-size": "many"}, 1, (1, 1000, 1000, 100)),
        ({"global-batch-size": "1e6"}, 1, (1, 1_000_000, 1_000_000, 1)),
    ],
)
def test_batch_sizes_and_steps_of_the_hyperparameters(
    hyperparameters: dict[str, str], nodes: int, expected: tuple[int, ...]
) -> None:
    """(processes per node, global batch, per-replica batch, steps)."""
    work = plan_workload(MODEL, "a", nodes, hyperparameters)
    found = (
        work.processes_per_node,
        work.global_batch_size,
        work.per_replica_batch_size,
        work.steps,
    )
    assert found == expected
    assert work.world_size == nodes * expected[0]


def test_gradient_accumulation_is_part_of_the_global_batch() -> None:
    given = {"per-replica-batch-size": "100", "accumulate-grad-batches": "3"}
    assert plan_workload(MODEL, "a", 2, given).global_batch_size == 600


def test_noise_follows_from_the_name_and_the_seed() -> None:
    noisy = MODEL.model_copy(update={"noise_sigma": 0.1})
    other_seed = noisy.model_copy(update={"seed": 1})

    def factor(model: PerformanceModel, name: str) -> float:
        return plan_workload(model, name, 1, {}).step_seconds / 10

    assert factor(noisy, "a") == factor(noisy, "a") != factor(noisy, "b")
    assert factor(noisy, "a") != factor(other_seed, "a")
    logarithms = [math.log(factor(noisy, f"job-{number}")) for number in range(400)]
    assert sum(logarithms) / 400 == pytest.approx(0, abs=0.02)
    assert math.sqrt(sum(value**2 for value in logarithms) / 400) == pytest.approx(0.1, rel=0.15)


def test_model_file(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("t_compute_seconds: 60\nnoise_sigma: 0\n")
    assert read_model(path) == PerformanceModel(t_compute_seconds=60, noise_sigma=0)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        '{"speed": 1}',
        '{"serial_share": 2}',
        '{"t_compute_seconds": .inf}',
    ],
)
def test_bad_model_files(tmp_path: Path, content: str, snapshot: SnapshotAssertion) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(content)
    with pytest.raises(SettingsError) as refused:
        read_model(path)
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_a_jobs_environment_replaces_fields() -> None:
    environment = {
        "NODESWEEP_SIM_T_COMPUTE_SECONDS": "5",
        "NODESWEEP_SIM_SAMPLES": "10",
        "OTHER": "x",
    }
    assert model_of_job(MODEL, environment) == MODEL.model_copy(
        update={"t_compute_seconds": 5.0, "samples": 10}
    )
    assert model_of_job(MODEL, {"OTHER": "x"}) is MODEL


@pytest.mark.parametrize(
    "environment",
    [
        {"NODESWEEP_SIM_SAMPLES": "0"},
        {"NODESWEEP_SIM_SPEED": "1"},
    ],
)
def test_bad_environment(environment: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ApiError) as refused:
        model_of_job(MODEL, environment)
    assert str(refused.value) == snapshot


def test_fields_are_in_the_readme() -> None:
    import sagemaker_emulator.simulation.model as module

    readme = (Path(module.__file__).parents[2] / "README.md").read_text()
    missing = [name for name in PerformanceModel.model_fields if f"`{name}`" not in readme]
    assert missing == [], json.dumps(missing)


def test_a_probe_makes_no_more_steps_than_it_takes_to_tell() -> None:
    asked = {"NODESWEEP_PROBE_PRECISION": "0.01", "NODESWEEP_PROBE_MAX_STEPS": "2000"}
    whole, probe = plan_workload(MODEL, "a", 1, {}), plan_workload(MODEL, "a", 1, {}, asked)
    assert (whole.steps, whole.whole_run_steps) == (100, None)
    assert (probe.steps, probe.whole_run_steps) == (30, 100)
    assert probe.step_seconds == whole.step_seconds
    few = plan_workload(MODEL, "a", 1, {"max-steps": "20"}, asked)
    assert (few.steps, few.whole_run_steps) == (20, None)


def test_amount_of_a_sized_sweep_goes_before_the_models() -> None:
    whole = plan_workload(MODEL, "a", 1, {"max-steps": "50"})
    told = plan_workload(MODEL, "a", 1, {"max-steps": "50"}, {"NODESWEEP_RUN_STEPS": "7"})
    sized = plan_workload(MODEL, "a", 1, {}, {"NODESWEEP_RUN_SECONDS": "44"})
    assert (whole.steps, told.steps, sized.steps) == (50, 7, 4)  # of 10 s each
    assert told.whole_run_steps is None is sized.whole_run_steps
