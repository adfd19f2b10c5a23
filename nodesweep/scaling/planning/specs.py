"""Turn a PlannedPoint into the JobSpec of one attempt."""

from __future__ import annotations

from dataclasses import replace

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, Render, ResolvedInputs
from nodesweep.scaling.outcome.observed import SWITCH, TIME_ALL_REDUCES
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_SHARE, MOST_STEPS
from nodesweep.scaling.outcome.timed_passes import TIME_PASSES
from nodesweep.scaling.planning.fallbacks import training_on_selected
from nodesweep.scaling.planning.plan import PlannedPoint, fill_placeholders
from nodesweep.scaling.planning.workload import workload_variables


def build_spec(
    config: BenchmarkConfig,
    point: PlannedPoint,
    inputs: ResolvedInputs,
    render: Render,
    attempt: int = 1,
    steps: int | None = None,
    selected_type: str | None = None,
    times_parts: bool = True,
) -> JobSpec:
    """Return the job of one attempt at a point.

    Args:
        config: The benchmark.
        point: The point to run.
        inputs: The results of earlier stages.
        render: Renders a spec as the backend's request, whose digest is part of the job's name.
        attempt: Number of the attempt, from 1.
        steps: Steps for the program to run, if the sweep has sized them
            (nodesweep/scaling/planning/workload.py).
        selected_type: The instance type that the first job got, if it could run on several
            (nodesweep/scaling/planning/fallbacks.py).
        times_parts: False for the job of a version that timed neither all-reduces nor passes.
    """
    own = config.of_arm(point.arm.name)
    training = own.training
    if training.instance_fallbacks:
        training = training_on_selected(config, training, point, selected_type)
    amount = workload_variables(config, point, training.steps or steps)
    unnamed = JobSpec(
        name="",
        digest="",
        nodes=point.nodes,
        repeat=point.repeat,
        attempt=attempt,
        inputs=inputs,
        training=training,
        dataset=own.dataset,
        hyperparameters={
            name: fill_placeholders(value, point)
            for name, value in training.hyperparameters.items()
        },
        variables=_measuring_variables(own, point, times_parts) | amount,
        platform=own.platform,
    )
    digest = names.canonical_digest(render(unnamed))
    name = names.job_name(
        inputs.sweep_id, point.nodes, point.repeat, attempt, digest, point.arm.code
    )
    return replace(unnamed, name=name, digest=digest)


def _measuring_variables(
    config: BenchmarkConfig, point: PlannedPoint, times_parts: bool
) -> dict[str, str]:
    """Return the environment variables that control how a program is measured and stopped early.

    The stopping criteria are the same for every probe, so that the digest distinguishes probes from
    full jobs such as the validation run.
    """
    measure = config.training.measure
    variables = {} if measure == "auto" else {SWITCH: str(measure)}
    if config.ends_early(point.repeat):
        ends = config.sweep.probe_ends
        variables |= {ASKED_BY: f"{ends.precision:g}", MOST_STEPS: str(ends.max_steps)}
        if ends.max_share is not None:
            variables[MOST_SHARE] = f"{ends.max_share:g}"
    if not times_parts:
        return variables
    is_predicted = config.sweep.rules.predicts and not config.ships_program
    if is_predicted and point.nodes > 1:
        variables[TIME_ALL_REDUCES] = "1"
    batches = config.sweep.rules.batches_to_time(config)
    if batches and point.nodes == 1:
        variables[TIME_PASSES] = ",".join(map(str, batches))
    return variables
