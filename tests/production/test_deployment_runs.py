"""Deployments as users use them: a run from the form, a schedule, and refused values."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from nodesweep.configs.allowed import LOCAL_PLATFORM
from nodesweep.scaling import names
from tests.production.world import World, wait_for

pytestmark = pytest.mark.slow
LOCAL, NIGHTLY = "scaling-benchmark/local", "scaling-benchmark/nightly"
BOTH_COMPLETED = {(1, 1): ["Completed"], (2, 1): ["Completed"]}


def report_is_kept(world: World, sweep: str | None) -> bool:
    """Check that the report is in the bucket and on this machine."""
    assert sweep is not None
    world.s3.head_object(
        Bucket="nodesweep-local", Key=names.report_key("nodesweep", sweep, names.REPORT_JSON)
    )
    return (world.reports / sweep / names.REPORT_HTML).is_file()


def test_run_from_the_form_ends_with_its_report(world: World) -> None:
    settings = world.settings("form")
    for name in LOCAL_PLATFORM:  # the worker of `make up` knows where its platform is
        del settings[name]
    run = world.start(LOCAL, node_counts=[1, 2], settings=settings)
    assert world.end_of(run) == "Completed"
    ledger = world.ledger("form")
    assert ledger.points == BOTH_COMPLETED
    assert all(report_is_kept(world, sweep) for sweep in ledger.sweeps)
    artifacts = world.call("POST", "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
    assert "scaling-report" in {artifact["key"] for artifact in artifacts}


def test_schedule_fires(world: World) -> None:
    """The schedule is switched on at the server, with separate parameters. It may first fire a
    minute after its creation."""
    deployment = world.deployment_id(NIGHTLY)
    parameters = {"preset": "local", "repeats": 1, "settings": world.settings("scheduled")}
    body = [
        {"schedule": {"interval": 40.0}, "active": True, "parameters": parameters, "slug": "soon"}
    ]
    (made,) = world.call("POST", f"/deployments/{deployment}/schedules", list_body=body)
    try:
        run = wait_for("a run of the schedule", lambda: first_run(world, deployment))
        wait_for("its start", lambda: world.state(run) == "Running")
    finally:
        world.call("DELETE", f"/deployments/{deployment}/schedules/{made['id']}")
    assert world.call("GET", f"/flow_runs/{run}")["auto_scheduled"] is True
    assert world.end_of(run) == "Completed"
    assert world.ledger("scheduled").points == BOTH_COMPLETED


def first_run(world: World, deployment: str, **parameters: str) -> str | None:
    """Return the first run of the deployment that has these parameters."""
    runs = world.call(
        "POST", "/flow_runs/filter", flow_runs={"deployment_id": {"any_": [deployment]}}
    )
    fitting = [run for run in runs if parameters.items() <= run["parameters"].items()]
    first = min(fitting, key=lambda run: run["expected_start_time"], default=None)
    return None if first is None else str(first["id"])


def test_value_out_of_bounds_is_refused_with_its_field(world: World) -> None:
    assert "repeats" in world.refusal(LOCAL, {"repeats": 0})
    assert "instance_type" in world.refusal(LOCAL, {"instance_type": "ml.m5"})


def test_fields_that_do_not_go_together_fail_the_run_before_any_job(world: World) -> None:
    run = world.start(LOCAL, settings=world.settings("crossed", **{"sweep__node_counts": [2, 2]}))
    assert world.end_of(run) == "Failed"
    wait_for(
        "the reason in the log",
        lambda: "sweep.node_counts: node counts [2, 2] repeat" in world.log_of(run),
        10,
    )
    assert world.ledger("crossed").points == {}


def test_event_about_a_job_starts_a_collect_for_it(world: World) -> None:
    """The event is as EventBridge sends it. The run is cancelled before a worker gets it, because
    its preset's platform is another one."""
    job = "left-20260102030405-0a1b2c3d-n1-r1-a1-abcd"
    event = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "aws.sagemaker.training-job.state-change",
        "resource": {
            "prefect.resource.id": f"aws.sagemaker.training-job.{job}",
            "prefect.resource.name": job,
        },
        "payload": {},
    }
    collect = world.deployment_id("collect-sweep/collect")
    world.call("POST", "/events", list_body=[event])
    run = wait_for(
        "the run that the event starts", lambda: first_run(world, collect, sweep_id=job), 60
    )
    world.call("DELETE", f"/flow_runs/{run}")
