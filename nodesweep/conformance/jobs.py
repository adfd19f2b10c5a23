"""Checks of training jobs: start, adoption, logs, metrics, billing, stop, spot, warm pool, GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nodesweep.conformance.check import Contradicted, NoEvidence, Shape, Unmet
from nodesweep.conformance.trial import Observed, Trial
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.batch import PREFIX, payload_name
from nodesweep.launch.sagemaker.logs import own_name
from nodesweep.polling import intervals
from nodesweep.scaling.job import TRAINING_PHASE
from nodesweep.tasks.sweeps.stopping import stop_sweep_jobs_now

ONE = Shape("one-node job", asks_for_any_type=True)
TWO = Shape("two-node job", nodes=2)
STOPPED = Shape("job to stop", repeat=2)
CANCELLED = Shape("job to cancel", repeat=3)
SPOT = Shape("spot job", spot=True)
KEPT = Shape("job with a warm pool", keep_alive_seconds=300)
REUSING = Shape("job in the warm pool", repeat=4, keep_alive_seconds=300)
_LATE_SECONDS = 180.0
"""Seconds that metrics and the status of kept nodes can lag behind a job's end."""


def image_build(trial: Trial) -> Mapping[str, Any]:
    """Build the image, unless the registry has it."""
    config = trial.facts(ONE).config
    if config.image.uri is not None:
        raise Unmet("the config names an existing image (image.uri)")
    image = trial.image()
    if not image.built:
        raise Unmet(f"the registry already has the image: {image.uri}")
    return {"image": image.uri}


def one_node(trial: Trial) -> Mapping[str, Any]:
    """Run a job to its end and read its metrics.json."""
    return _measured(trial, ONE)


def two_nodes(trial: Trial) -> Mapping[str, Any]:
    """Run a job on two nodes, whose processes must form one process group."""
    found = _measured(trial, TWO)
    job = trial.completed(TWO)
    if isinstance(world := found["world_size"], int) and world < TWO.nodes:
        raise Contradicted(f"world_size is {world} on {TWO.nodes} nodes")
    if len(hosts := _hosts(job)) != TWO.nodes:
        raise NoEvidence(f"the log has lines from only {len(hosts)} of {TWO.nodes} nodes")
    return {**found, "nodes_with_a_log": len(hosts)}


def _measured(trial: Trial, shape: Shape) -> dict[str, Any]:
    """Return facts from a job's status and metrics.json.

    Raises:
        NoEvidence: the job did not complete, or has no metrics.json.
    """
    job = trial.completed(shape)
    metrics = _metrics(trial, job)
    world = metrics.get("world") or {}
    return {
        "state": job.status.state,
        "seconds_to_end": job.status.seconds_to_end,
        "train_seconds": metrics.get("train_seconds"),
        "world_size": world.get("world_size"),
        "backend": world.get("backend"),
        "distribution": trial.config.training.distribution.kind,
    }


def _metrics(trial: Trial, job: Observed) -> Mapping[str, Any]:
    found = backend_of(trial.platform).read_metrics(trial.sweep, job.spec.name)
    if found is None:
        raise NoEvidence("the job completed, but left no metrics.json in S3")
    return found


def _hosts(job: Observed) -> set[str]:
    return {line.partition(": ")[0] for line in job.lines}


def adoption(trial: Trial) -> Mapping[str, Any]:
    """Submit the same request again, which must adopt the job instead of creating a second one."""
    job = trial.ended(ONE)
    launcher = backend_of(trial.platform).launcher()
    again = launcher.submit(job.spec)
    if again.created_at is None or again.created_at != job.status.created_at:
        raise Contradicted("the same request created a second job instead of adopting the first")
    listed = [each.name for each in launcher.jobs_of(trial.sweep)]
    if listed.count(job.spec.name) != 1:
        raise Contradicted(f"the job is listed {listed.count(job.spec.name)} times")
    return {"adopted": True, "jobs_of_the_trial": len(listed)}


def phases(trial: Trial) -> Mapping[str, Any]:
    """Read the durations of the job's phases."""
    seconds = trial.completed(ONE).status.phase_seconds
    if TRAINING_PHASE not in seconds:
        raise NoEvidence(f"the description has no phase {TRAINING_PHASE}: {seconds}")
    return {"phase_seconds": seconds}


def billed(trial: Trial) -> Mapping[str, Any]:
    """Check that the billed seconds do not exceed the job's duration."""
    status = trial.completed(ONE).status
    seconds, life = status.billed_seconds, status.seconds_to_end
    if not seconds:
        raise NoEvidence("the description has no billed seconds")
    if life is not None and seconds > life + 1:
        raise Contradicted(f"{seconds} s were billed for a job that lasted {life} s")
    return {"billed_seconds": seconds, "seconds_to_end": life}


def whole_log(trial: Trial) -> Mapping[str, Any]:
    """Download the log of the ended job."""
    job = trial.completed(ONE)
    lines = list(backend_of(trial.platform).read_log(job.status, trial.folder))
    if not lines:
        raise NoEvidence("the job has no log")
    return {"lines": len(lines)}


def utilisation(trial: Trial) -> Mapping[str, Any]:
    """Read the instance metrics, which may arrive minutes after the job has ended."""
    job, clock = trial.completed(ONE), trial.clock
    deadline = clock.monotonic() + _LATE_SECONDS
    for pause in intervals(1.0, 30.0):
        found = backend_of(trial.platform).read_utilisation(job.status)
        if found:
            return {"mean_percent": dict(found)}
        if clock.monotonic() >= deadline or not job.status.billed_seconds:
            raise NoEvidence("CloudWatch has no metrics for the job's nodes")
        clock.sleep(pause)
    raise AssertionError


def stop(trial: Trial) -> Mapping[str, Any]:
    """Follow a running job's log until it has a line, then stop the job."""
    spec = trial.submit(STOPPED, anew=True)
    seen = trial.follow(spec, until=lambda job: bool(job.lines))
    if seen.status.has_ended:
        raise NoEvidence(f"the job ended as {seen.status.state} before its log could be followed")
    return _stopped(trial, seen, backend_of(trial.platform).launcher().stop(spec.name))


def _stopped(trial: Trial, seen: Observed, asked: bool) -> dict[str, Any]:
    status = trial.follow(seen.spec).status
    if status.state != "stopped":
        raise NoEvidence(f"the job was asked to stop, but ended as {status.state}")
    return {
        "lines_before_the_stop": seen.live_lines,
        "asked_while_running": asked,
        "state": status.state,
        "reason": status.reason,
        "billed_seconds": status.billed_seconds,
    }


def cancel(trial: Trial) -> Mapping[str, Any]:
    """Stop a job right after its submission, as a cancelled run does."""
    spec = trial.submit(CANCELLED, anew=True)
    ended = stop_sweep_jobs_now(backend_of(trial.platform), trial.sweep, [spec.name])
    if spec.name not in ended:
        raise NoEvidence("the job had ended before it could be cancelled")
    return _stopped(trial, Observed(spec, launcher_status(trial, spec.name)), True)


def launcher_status(trial: Trial, name: str) -> Any:
    """Return the job's status.

    Raises:
        NoEvidence: the platform does not have the job.
    """
    status = backend_of(trial.platform).launcher().status(name)
    if status is None:
        raise NoEvidence(f"the platform has no job {name}")
    return status


def spot(trial: Trial) -> Mapping[str, Any]:
    """Run a job on spot capacity."""
    found = _measured(trial, SPOT)
    status = trial.completed(SPOT).status
    if not status.spot or status.billable_seconds is None:
        raise NoEvidence("the description does not show that the job ran on spot capacity")
    trained = status.training_seconds
    if trained is not None and status.billable_seconds > trained:
        raise Contradicted(f"{status.billable_seconds} s were billed for {trained} s of training")
    return {**found, "billable_seconds": status.billable_seconds, "training_seconds": trained}


def warm_pool(trial: Trial) -> Mapping[str, Any]:
    """Check that a job reuses the nodes that an identical job left in its warm pool."""
    if trial.platform.batch is not None:
        raise Unmet("jobs of an AWS Batch queue (platform.batch) keep no nodes")
    first = trial.completed(KEPT)
    if not first.status.keep_alive_seconds:
        raise NoEvidence("the description does not show that the nodes are kept after the job")
    second = trial.completed(REUSING)
    clock, deadline = trial.clock, trial.clock.monotonic() + _LATE_SECONDS
    for pause in intervals(1.0, 15.0):
        status = launcher_status(trial, first.spec.name)
        if status.reused_by == second.spec.name:
            break
        if clock.monotonic() >= deadline:
            raise NoEvidence(f"the first job's nodes were not reused ({status.retention})")
        clock.sleep(pause)
    return {
        "reused": True,
        "retained_seconds": status.retained_seconds,
        "first_seconds_to_end": first.status.seconds_to_end,
        "second_seconds_to_end": second.status.seconds_to_end,
    }


def nccl(trial: Trial) -> Mapping[str, Any]:
    """Check that the GPUs of two nodes exchange gradients over NCCL."""
    if not trial.instance.accelerators:
        raise Unmet(f"{trial.instance.instance_type} has no GPU; use a config for a type with GPUs")
    found = _measured(trial, TWO)
    if found["backend"] != "nccl":
        raise Contradicted(f"the backend is {found['backend']}, not nccl")
    return {**found, "accelerator": trial.instance.accelerator}


def batch_queue(trial: Trial) -> Mapping[str, Any]:
    """Check how AWS Batch names the training job of a completed service job.

    Raises:
        Contradicted: the name does not follow Batch's user guide, so logs would not be found.
    """
    platform = trial.platform
    if platform.batch is None:
        raise Unmet("the config has no platform.batch")
    job = trial.completed(ONE)
    name = own_name(backend_of(platform), job.spec.name)
    expected = f"{PREFIX}{payload_name(job.spec.name)}"
    if not re.fullmatch(rf"{expected}[0-9a-f]{{32}}", name):
        raise Contradicted(f"the queue's training job is {name}, not {expected} plus 32 hex digits")
    return {"training_job": name, "seconds_to_end": job.status.seconds_to_end}


def instance_fallbacks(trial: Trial) -> Mapping[str, Any]:
    """Check that the description has the instance type that SageMaker selected."""
    training = trial.config.training
    if not training.instance_fallbacks:
        raise Unmet("the config has no training.instance_fallbacks")
    wanted = (training.instance_type, *training.instance_fallbacks)
    selected = trial.completed(ONE).status.instance_type
    if selected is None:
        raise NoEvidence("the description has no instance type")
    if selected not in wanted:
        raise Contradicted(f"the job ran on {selected}, not on one of {', '.join(wanted)}")
    return {"asked_for": wanted, "selected": selected}


def training_plan(trial: Trial) -> Mapping[str, Any]:
    """Run a job on the capacity of a training plan."""
    if trial.config.training.training_plan_arn is None:
        raise Unmet("the config has no training.training_plan_arn")
    return _measured(trial, ONE)
