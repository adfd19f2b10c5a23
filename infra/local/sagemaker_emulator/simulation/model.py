"""The performance model, which computes the durations of phases and steps of a simulated job.

For a step on N nodes, with a global batch of B samples and S samples in the whole job:
  compute(N) = t_compute_seconds * B / S * (serial_share + (1 - serial_share) / N)        (Amdahl)
  all-reduce(N) = 2 * (N - 1) / N * gradient_bytes / bandwidth_bytes_per_second
                  + 2 * (N - 1) * latency_seconds                               (ring; 0 at N = 1)
  step(N) = (compute(N) + all-reduce(N)) * exp(noise_sigma * z)
            where z is standard normal, drawn with (seed, job name)
  train_seconds = steps * step(N),   steps = max-steps of the job, or floor(S / B), at least 1;
                  or as set by NODESWEEP_RUN_STEPS or NODESWEEP_RUN_SECONDS in the job's Environment

All steps of a job take the same time. A job with NODESWEEP_PROBE_PRECISION in its Environment can
therefore end after the number of steps that a measurement needs.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.plain_yaml import read_yaml
from sagemaker_emulator.settings import SettingsError

ENVIRONMENT_PREFIX = "NODESWEEP_SIM_"
"""Prefix of variables in a job's Environment: NODESWEEP_SIM_<FIELD> sets a field for the job."""


PROBE_PRECISION, PROBE_MAX_STEPS = "NODESWEEP_PROBE_PRECISION", "NODESWEEP_PROBE_MAX_STEPS"
RUN_STEPS, RUN_SECONDS = "NODESWEEP_RUN_STEPS", "NODESWEEP_RUN_SECONDS"
PROBE_STEPS = 30
"""Steps of a probe: ten for warmup and twenty to measure, as in infra/image/nodesweep_clock.py."""


class PerformanceModel(BaseModel):
    """The parameters that determine the times of simulated jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    t_compute_seconds: float = Field(
        default=600.0, gt=0, description="Compute time of `samples` on one node."
    )
    samples: int = Field(
        default=1_000_000, ge=1, description="Samples of the whole job, all epochs together."
    )
    serial_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of the compute time that more nodes don't reduce.",
    )
    gradient_bytes: float = Field(
        default=1e8, ge=0, description="Bytes that every step all-reduces."
    )
    bandwidth_bytes_per_second: float = Field(
        default=1.25e9, gt=0, description="Bandwidth of a node's link, in one direction."
    )
    latency_seconds: float = Field(
        default=5e-5, ge=0, description="Latency of one of the ring's 2 (N - 1) messages."
    )
    noise_sigma: float = Field(
        default=0.02, ge=0, le=2, description="Sigma of the log-normal factor on a job's step time."
    )
    seed: int = Field(
        default=0,
        description="Seed of the noise; a job's noise follows from it and the job's name.",
    )
    global_batch_size: int = Field(
        default=1024, ge=1, description="Global batch of jobs whose hyperparameters don't set one."
    )
    processes_per_node: int = Field(
        default=1, ge=1, description="Processes per node of jobs whose batch sizes don't set them."
    )
    startup_seconds: float = Field(
        default=120.0, ge=0, description="Time in status Starting; a job on a warm pool skips it."
    )
    download_seconds: float = Field(default=30.0, ge=0, description="Time in status Downloading.")
    setup_seconds: float = Field(
        default=20.0, ge=0, description="Time in status Training before the program's clock starts."
    )
    upload_seconds: float = Field(default=10.0, ge=0, description="Time in status Uploading.")
    processing_seconds: float = Field(
        default=300.0,
        ge=0,
        description="Time of a Processing job between its download and its upload.",
    )
    final_metric: float = Field(
        default=0.9, description="Value of validation_accuracy at the end, at every N."
    )


@dataclass(frozen=True)
class Workload:
    """The work of a job according to the model, including noise in `step_seconds`."""

    nodes: int
    processes_per_node: int
    global_batch_size: int
    per_replica_batch_size: int
    accumulate_grad_batches: int
    steps: int
    epochs: int
    samples: int
    step_seconds: float
    whole_run_steps: int | None = None
    """The number of steps in the whole run if the job ends early, else None."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def train_seconds(self) -> float:
        return self.steps * self.step_seconds


def read_model(path: Path) -> PerformanceModel:
    """Read a model from a YAML or JSON file, with defaults for missing fields.

    Raises:
        SettingsError: If the file is not a valid model.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise SettingsError(
            f"{path}: expected fields of the model, such"
            f" as {{t_compute_seconds: 600}}, got {content!r}"
        )
    try:
        return PerformanceModel.model_validate(content)
    except ValidationError as error:
        raise SettingsError(
            "\n".join(f"{path}: {problem}" for problem in _problems(error))
        ) from error


def model_of_job(model: PerformanceModel, environment: Mapping[str, str]) -> PerformanceModel:
    """Return the model with the overrides in a job's Environment.

    Raises:
        ValidationException: If overrides are invalid. The message names all of them.
    """
    settings = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    if not settings:
        return model
    try:
        return PerformanceModel.model_validate({**model.model_dump(), **settings})
    except ValidationError as error:
        raise validation_error(
            "; ".join(
                f"Environment {ENVIRONMENT_PREFIX}{problem}"
                for problem in _problems(error, str.upper)
            )
        ) from error


def plan_workload(
    model: PerformanceModel,
    job_name: str,
    nodes: int,
    hyperparameters: Mapping[str, str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Workload:
    """Return the workload of a job.

    Batch sizes and steps come from the job's hyperparameters; the model provides those that are
    missing. The Environment can set the number of steps or their total time, or request a probe,
    which needs fewer steps.
    """
    settings = {name.replace("_", "-"): value for name, value in hyperparameters.items()}
    accumulate = _whole(settings.get("accumulate-grad-batches")) or 1
    total = _whole(settings.get("global-batch-size"))
    replica = _whole(settings.get("per-replica-batch-size"))
    processes = model.processes_per_node
    if total and replica and total % (replica * accumulate * nodes) == 0:
        processes = total // (replica * accumulate * nodes)
    world_size = nodes * processes
    if total is None:
        total = replica * accumulate * world_size if replica else model.global_batch_size
    noise = random.Random(f"{model.seed}:{job_name}").gauss(0, 1)
    seconds = step_seconds(model, nodes, total) * math.exp(model.noise_sigma * noise)
    steps = (
        _whole(environment.get(RUN_STEPS))
        or _steps_of_seconds(environment.get(RUN_SECONDS), seconds)
        or _whole(settings.get("max-steps"))
        or max(1, model.samples // total)
    )
    made = steps
    if PROBE_PRECISION in environment:
        most = _whole(environment.get(PROBE_MAX_STEPS)) or PROBE_STEPS
        made = min(steps, most, PROBE_STEPS)
    return Workload(
        nodes=nodes,
        processes_per_node=processes,
        global_batch_size=total,
        per_replica_batch_size=replica or max(1, total // (world_size * accumulate)),
        accumulate_grad_batches=accumulate,
        steps=made,
        whole_run_steps=steps if made < steps else None,
        epochs=_whole(settings.get("epochs")) or 1,
        samples=model.samples,
        step_seconds=seconds,
    )


def step_seconds(model: PerformanceModel, nodes: int, global_batch_size: int) -> float:
    """Return the duration of an optimizer step in seconds without noise (see the module)."""
    serial = model.serial_share
    compute = (
        model.t_compute_seconds
        * global_batch_size
        / model.samples
        * (serial + (1 - serial) / nodes)
    )
    transfer = 2 * (nodes - 1) / nodes * model.gradient_bytes / model.bandwidth_bytes_per_second
    return compute + transfer + 2 * (nodes - 1) * model.latency_seconds


def _steps_of_seconds(text: str | None, one_step_seconds: float) -> int | None:
    """Return the number of steps that take this many seconds, or None if not set."""
    return max(1, round(float(text) / one_step_seconds)) if text else None


def _whole(text: str | None) -> int | None:
    """Parse a positive integer in a hyperparameter, with or without JSON quotes.

    Return None for anything else.
    """
    try:
        value: Any = json.loads(text) if text is not None else None
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if number > 0 and number == float(value) else None


def _problems(error: ValidationError, spell: Any = str) -> list[str]:
    problems = []
    for item in error.errors(include_url=False):
        name = spell(str(item["loc"][0]))
        if item["type"] == "extra_forbidden":
            known = ", ".join(spell(field) for field in PerformanceModel.model_fields)
            problems.append(f"{name}: unknown; allowed: {known}")
        else:
            problems.append(f"{name}: {item['msg']}, got {item['input']!r}")
    return problems
