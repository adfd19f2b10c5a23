"""The request of a point, as a run builds it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.request import render
from nodesweep.scaling.job import Render, ResolvedInputs
from nodesweep.scaling.names import canonical_digest
from nodesweep.scaling.planning.plan import PlannedPoint
from nodesweep.scaling.planning.specs import build_spec


def render_of(config: BenchmarkConfig) -> Render:
    """Return how jobs of this config are rendered."""
    return partial(render, config.platform)


def build_request(
    config: BenchmarkConfig,
    point: PlannedPoint,
    inputs: ResolvedInputs,
    attempt: int = 1,
    steps: int | None = None,
) -> dict[str, Any]:
    """Return the complete request of one attempt at a point."""
    spec = build_spec(config, point, inputs, render_of(config), attempt, steps)
    return render(config.platform, spec)


def request_digest(request: Mapping[str, Any]) -> str:
    """Return the digest of a request without the parts that identify its job.

    The job name, the tags and the job's own folder are left out.
    """
    described = {
        key: value for key, value in request.items() if key not in ("TrainingJobName", "Tags")
    }
    if "CheckpointConfig" in described:
        described["CheckpointConfig"] = {
            k: v for k, v in described["CheckpointConfig"].items() if k != "S3Uri"
        }
    hyperparameters = dict(described.get("HyperParameters", {}))
    hyperparameters.pop("sagemaker_job_name", None)
    return canonical_digest({**described, "HyperParameters": hyperparameters})
