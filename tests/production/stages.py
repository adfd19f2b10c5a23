"""Runs held at a stage by a proxy that reports the stage as unfinished."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.chaos.proxy import Proxy
from tests.production.world import PATIENCE_SECONDS, World, wait_for

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "data" / "digits"
HELD_AT = {
    "validation": "DescribeProcessingJob",
    "upload": "PUT datasets",
    "build": "BatchGetBuilds",
    "quota": "DescribeTrainingJob",
    "jobs": "DescribeTrainingJob",
    "report": "PUT report",
}
"""The call at which a stage's run is held; the platform holds jobs, and Prefect a quota."""
_WAITS_IN_THE_CALL = ("upload", "report")
LIMIT = "cancelled-at-every-stage"


class Gate(Proxy):
    """A proxy in front of the platform that holds a run at its stage."""

    def __init__(self, world: World, stage: str) -> None:
        super().__init__(
            world.endpoint,
            self._fault,
            state_directory=world.machine.platform_folder,
            port=world.gate_ports[list(HELD_AT).index(stage)],
        )
        self.stage, self.label = stage, HELD_AT[stage]
        self.arrived, self.opened = threading.Event(), threading.Event()
        self._jobs_have_begun = False  # objects put below report/ earlier belong to the dataset
        self.stopped: list[str] = []
        """Labels of the calls that stopped a build or a Processing job."""

    def _fault(self, label: str, number: int) -> None:
        self._jobs_have_begun |= label == "CreateTrainingJob"
        if label == self.label and (self.stage != "report" or self._jobs_have_begun):
            self.arrived.set()
            if self.stage in _WAITS_IN_THE_CALL:
                self.opened.wait(PATIENCE_SECONDS)

    def late(self, label: str, body: bytes, answer: Any) -> Any:
        """Rewrite a response so that the stage's build or Processing job is unfinished."""
        if label in ("StopBuild", "StopProcessingJob"):
            self.stopped.append(label)
            return replace(answer, status=200, reason="OK", body=b"{}")
        if label == "BatchGetBuilds" and self.stage == "build":
            said = json.loads(answer.body)
            status = "STOPPED" if self.stopped else "IN_PROGRESS"
            return answer.with_json(
                {**said, "builds": [{**each, "buildStatus": status} for each in said["builds"]]}
            )
        if label == "DescribeProcessingJob" and answer.status == 200:
            status = "Stopped" if self.stopped else "InProgress"
            return answer.with_json({**json.loads(answer.body), "ProcessingJobStatus": status})
        return answer


def settings_of(world: World, stage: str, benchmark: str, endpoint: str) -> dict[str, Any]:
    """Return settings that make the preset `local` reach a stage it may skip."""
    changes: dict[str, Any] = {"platform__endpoint_url": endpoint}
    if stage == "build":
        changes |= {"image__uri": None, "image__context": "../infra/image"}
        changes |= {"image__repository": benchmark}
    elif stage == "upload":
        changes |= {"platform__prefix": benchmark}  # an empty prefix, so that it uploads
    elif stage == "quota":
        changes |= {"sweep__concurrency_limit": LIMIT}
    elif stage == "validation":
        changes |= {
            "dataset__source": f"s3://{_bucket_with_digits(world)}/digits",
            "dataset__validation": {
                "engine": "spark",
                "instance_type": "ml.local.small",
                "image": {"uri": world.settings(benchmark)["image.uri"]},
            },
        }
    return world.settings(benchmark, **changes)


def _bucket_with_digits(world: World) -> str:
    world.s3.create_bucket(Bucket="raw")
    for path in DIGITS.glob("*.parquet"):
        world.s3.upload_file(str(path), "raw", f"digits/{path.name}")
    return "raw"


@contextmanager
def gates(world: World, stages: tuple[str, ...]) -> Iterator[dict[str, Gate]]:
    """Yield a gate for each stage; open all at the end."""
    with ExitStack() as stack:
        found = {stage: stack.enter_context(Gate(world, stage)) for stage in stages}
        try:
            yield found
        finally:
            for gate in found.values():
                gate.opened.set()


def wait_at(world: World, gate: Gate, run: str, benchmark: str) -> None:
    """Wait until the run is at the gate's stage."""
    if gate.stage == "quota":
        wait_for("the quota", lambda: "quota reached" in world.log_of(run))
    elif gate.stage == "jobs":
        world.running_jobs(benchmark, 2)
    elif not gate.arrived.wait(PATIENCE_SECONDS):
        raise AssertionError(f"{gate.stage} is not reached:\n{world.log_of(run)}")


@contextmanager
def taken_limit(world: World) -> Iterator[None]:
    """Create the limit LIMIT with all slots taken."""
    world.call("POST", "/v2/concurrency_limits/", name=LIMIT, limit=2, active=True, active_slots=2)
    yield
    world.call("DELETE", f"/v2/concurrency_limits/{LIMIT}")


def states_of(world: World, run: str) -> list[str]:
    """Return the types of the run's states in order."""
    states = world.call("GET", f"/flow_run_states/?flow_run_id={run}")
    return [each["type"] for each in sorted(states, key=lambda each: each["timestamp"])]


def task_states_of(world: World, run: str) -> dict[str, str]:
    """Return the state type of each task run by name."""
    found = world.call("POST", "/task_runs/filter", flow_runs={"id": {"any_": [run]}}, limit=200)
    return {each["name"]: each["state_type"] for each in found}


def job_states_of(world: World, run: str) -> list[tuple[str, str]]:
    """Return the name and the state's name of the task run of each of the run's jobs, sorted."""
    jobs = {"tags": {"all_": ["training-job"]}}
    found = world.call(
        "POST", "/task_runs/filter", flow_runs={"id": {"any_": [run]}}, task_runs=jobs
    )
    return sorted((each["name"], each["state_name"]) for each in found)


def events_of(world: World, run: str) -> set[str]:
    """Return the names of all events of the run and its task runs so far."""
    of_run = {"id": [f"prefect.flow-run.{run}"]}
    found: set[str] = set()
    for about in ({"resource": of_run}, {"related": of_run}):
        page = world.call("POST", "/events/filter", filter={**about, "order": "ASC"}, limit=50)
        while True:
            found.update(event["event"] for event in page["events"])
            if not page["next_page"]:
                break
            page = world.call("GET", page["next_page"].partition("/api")[2])
    return found
