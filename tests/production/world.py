"""A machine as `make up` starts it, with Prefect's API and the platform's list of jobs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from botocore.config import Config

from nodesweep.aws.local_keys import local_session
from nodesweep.configs.presets import config_from_preset
from nodesweep.configs.section import WITH_SECRETS
from nodesweep.infra.worker.machine import HOST, Machine, up
from nodesweep.scaling import names

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
ROLE = "arn:aws:iam::000000000001:role/training"
RUNNING = ("InProgress", "Stopping")
NODES = "nodes-of-the-quota"
"""A global concurrency limit."""
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}
PATIENCE_SECONDS = 900.0
"""Only a hang takes longer: 11 concurrent runs took 380 s on two cores at a load of 20."""
_ANSWER_SECONDS = 90.0
"""Exceeds the 60 s that Prefect's server waits for a lock of its SQLite database."""


def wait_for(what: str, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Return the first truthy value of `condition`; fail the test after `seconds`.

    Args:
        what: Its name in the failure message.
        condition: Polled four times a second.
        seconds: The deadline.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.25)
    return value


@dataclass(frozen=True)
class Ledger:
    """The platform's list of one benchmark's jobs: status by job name."""

    jobs: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> list[str]:
        """Names of the jobs that are InProgress or Stopping."""
        return [name for name, status in self.jobs.items() if status in RUNNING]

    @property
    def statuses(self) -> dict[str, int]:
        """Number of jobs by status."""
        return dict(Counter(self.jobs.values()))

    @property
    def points(self) -> dict[tuple[int, int], list[str]]:
        """Statuses of the jobs of each (nodes, repeat), by attempt."""
        found: dict[tuple[int, int], list[str]] = {}
        for name in sorted(self.jobs):
            place = names.parse_job_name(name)
            assert place is not None, f"{name} is no job of a sweep"
            found.setdefault((place.nodes, place.repeat), []).append(self.jobs[name])
        return found

    @property
    def sweeps(self) -> set[str | None]:
        """IDs of the sweeps of the jobs."""
        return {names.sweep_of_job(name) for name in self.jobs}


class World:
    """A machine with clients of its Prefect server and its platform."""

    def __init__(self, machine: Machine, gate_ports: Sequence[int] = ()) -> None:
        """Create the clients; the machine's runs may also call gates on these ports."""
        self.machine, self.gate_ports = machine, tuple(gate_ports)
        self._runs_at_once: dict[str, int] = {}
        self._runs: dict[str, list[str]] = {}
        self.endpoint = f"http://{HOST}:{machine.platform_port}"
        user, _, password = machine.auth_file.read_text().strip().partition(":")
        self._api = httpx.Client(
            base_url=machine.api_url,
            auth=(user, password),
            timeout=_ANSWER_SECONDS,
            trust_env=False,
        )
        self.sagemaker, self.s3 = (self._client(service) for service in ("sagemaker", "s3"))

    def _client(self, service: str) -> Any:
        session = local_session(self.endpoint, "us-east-1", self.machine.platform_folder)
        return session.client(service, endpoint_url=self.endpoint, config=Config(proxies={}))

    def settings(self, benchmark: str, **changes: Any) -> dict[str, Any]:
        """Return settings that make `local` a benchmark on this platform, both jobs in parallel."""
        return {
            "name": benchmark,
            "image.uri": IMAGE,
            "image.context": None,
            # A fixed amount, so that the second job does not wait for the first one's step count.
            "training.hyperparameters.epochs": 1,
            "sweep.node_counts": [1, 2],
            "sweep.max_parallel_jobs": 2,
            "sweep.smoke": "never",
            # A held job waits as long as the other runs take to start.
            "sweep.queue_deadline_seconds": 7200,
            "platform.endpoint_url": self.endpoint,
            "platform.state_directory": str(self.machine.folder / "platform"),
            "platform.autostart": False,
            "platform.role_arn": ROLE,
            "report.directory": str(self.reports),
            **{name.replace("__", "."): value for name, value in changes.items()},
        }

    def config_file(self, benchmark: str, **changes: Any) -> Path:
        """Write the same settings as a config for `nodesweep run`."""
        config = config_from_preset("local", self.settings(benchmark, **changes))
        path = self.machine.folder / f"{benchmark}.json"
        path.write_text(config.model_dump_json(context=WITH_SECRETS))
        return path

    @property
    def reports(self) -> Path:
        """Folder of the machine's reports."""
        return self.machine.folder / "reports"

    # Prefect

    def up(self) -> None:
        """Run `make up` after a process of the machine was killed.

        It redeploys, which resets the deployments' limits; limits set by tests are restored.
        """
        up(self.machine)
        for deployment, limit in self._runs_at_once.items():
            self.allow_runs_at_once(deployment, limit)

    def allow_runs_at_once(self, deployment: str, limit: int) -> None:
        """Set a deployment's concurrency limit."""
        self._runs_at_once[deployment] = limit
        self.call(
            "PATCH", f"/deployments/{self.deployment_id(deployment)}", concurrency_limit=limit
        )

    def call(self, method: str, path: str, list_body: list[Any] | None = None, **body: Any) -> Any:
        """Call Prefect's API; the test fails with the response's text if it is rejected."""
        answer = self._answer(method, path, body if list_body is None else list_body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def _answer(self, method: str, path: str, body: dict[str, Any] | list[Any]) -> httpx.Response:
        """Call Prefect's API, retrying on 503, which a busy SQLite database causes, and lost GETs.

        Prefect's own client retries 503 too.
        """
        for is_last in [False] * 19 + [True]:
            try:
                got = self._api.request(method, path, json=body or None)
                if got.status_code != httpx.codes.SERVICE_UNAVAILABLE or is_last:
                    break
            except httpx.TransportError:
                if method != "GET" or is_last:
                    raise
            time.sleep(0.5)
        return got

    def refusal(self, deployment: str, parameters: dict[str, Any]) -> str:
        """Return the message with which a run with these parameters is rejected."""
        path = f"/deployments/{self.deployment_id(deployment)}/create_flow_run"
        answer = self._answer("POST", path, {"parameters": parameters})
        assert not answer.is_success, "the run was accepted"
        return answer.text

    def deployment_id(self, deployment: str) -> str:
        """Return the ID of a deployment, named flow/deployment."""
        return str(self.call("GET", f"/deployments/name/{deployment}")["id"])

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a run, as the UI does, and return its ID."""
        path = f"/deployments/{self.deployment_id(deployment)}/create_flow_run"
        run = str(self.call("POST", path, parameters=parameters)["id"])
        benchmark = parameters.get("settings", {}).get("name")
        self._runs.setdefault(benchmark, []).append(run)
        return run

    def state(self, run: str) -> str:
        """Return the name of the run's state, e.g. Running, Cancelled, AwaitingRetry."""
        return str(self.call("GET", f"/flow_runs/{run}")["state"]["name"])

    def set_state(self, run: str, kind: str, name: str, force: bool = False) -> None:
        """Set the run's state, which Prefect must accept."""
        answer = self.call(
            "POST", f"/flow_runs/{run}/set_state", state={"type": kind, "name": name}, force=force
        )
        assert answer["status"] == "ACCEPT", answer

    def cancel(self, run: str) -> None:
        """Cancel a run."""
        self.set_state(run, "CANCELLING", "Cancelling")

    def suspend(self, run: str) -> None:
        """Suspend a run as the button in the UI does."""
        until = datetime.now(UTC) + timedelta(hours=1)
        details = {"pause_timeout": until.isoformat(), "pause_reschedule": True}
        state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
        answer = self.call("POST", f"/flow_runs/{run}/set_state", state=state, force=True)
        assert answer["status"] == "ACCEPT", answer

    def retry(self, run: str) -> None:
        """Retry a run as `prefect flow-run retry` does."""
        self.set_state(run, "SCHEDULED", "Scheduled", force=True)

    def worker_has_noticed_kill(self, run: str) -> None:
        """Wait until the worker knows that the run's process was killed.

        The runner reports the run as crashed at once; the worker does so again once it notices, up
        to 34 s later on a busy machine, and would end a retry that came before. In the run's log it
        then has a line on memory.
        """
        line = "Check whether the flow run exceeded its memory allocation"
        wait_for(f"the worker to notice the end of {run}", lambda: line in self.log_of(run))

    def end_of(self, run: str, seconds: float = PATIENCE_SECONDS) -> str:
        """Return the name of the run's final state."""

        def ended() -> str | None:
            state = self.call("GET", f"/flow_runs/{run}")["state"]
            return state["name"] if state["type"] in _ENDED else None

        try:
            return str(wait_for(f"the end of run {run}", ended, seconds))
        except AssertionError as error:
            raise AssertionError(
                f"{error}; it is {self.state(run)}, its log:\n{self.log_of(run)}"
            ) from None

    def log_of(self, run: str) -> str:
        """Return the run's log so far, in pages of 200 lines, the most Prefect's server returns."""
        found: list[dict[str, Any]] = []
        while len(found) % 200 == 0:
            page = self.call(
                "POST",
                "/logs/filter",
                logs={"flow_run_id": {"any_": [run]}},
                limit=200,
                offset=len(found),
                sort="TIMESTAMP_ASC",
            )
            if not page:
                break
            found += page
        return "\n".join(entry["message"] for entry in found)

    # The platform

    def hold_jobs(self) -> Callable[[], None]:
        """Keep every job created from now on InProgress until the returned function is called.

        The platform runs one job at a time, and a two-hour job that belongs to no benchmark
        occupies it.
        """
        name = f"hold-{time.time_ns()}"
        self.s3.create_bucket(Bucket="hold")
        self.sagemaker.create_training_job(
            TrainingJobName=name,
            AlgorithmSpecification={"TrainingImage": IMAGE, "TrainingInputMode": "File"},
            RoleArn=ROLE,
            OutputDataConfig={"S3OutputPath": "s3://hold/jobs"},
            ResourceConfig={
                "InstanceType": "ml.local.small",
                "InstanceCount": 1,
                "VolumeSizeInGB": 1,
            },
            StoppingCondition={"MaxRuntimeInSeconds": 7200},
            Environment={"NODESWEEP_SIM_SETUP_SECONDS": "7000"},
        )

        def release() -> None:
            if (
                self.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"]
                in RUNNING
            ):
                self.sagemaker.stop_training_job(TrainingJobName=name)

        return release

    def ledger(self, benchmark: str) -> Ledger:
        """Return the platform's list of the benchmark's jobs."""
        pages = self.sagemaker.get_paginator("list_training_jobs").paginate(
            NameContains=f"{benchmark}-"
        )
        jobs = [job for page in pages for job in page["TrainingJobSummaries"]]
        found = {job["TrainingJobName"]: job["TrainingJobStatus"] for job in jobs}
        return Ledger(
            {name: status for name, status in found.items() if name.startswith(f"{benchmark}-")}
        )

    def running_jobs(
        self, benchmark: str, count: int = 1, seconds: float = PATIENCE_SECONDS
    ) -> list[str]:
        """Wait until this many jobs of the benchmark are running; return their names."""

        def enough() -> list[str] | None:
            running = self.ledger(benchmark).running
            return running if len(running) >= count else None

        try:
            return list(wait_for(f"{count} running jobs of {benchmark}", enough, seconds))
        except AssertionError as error:
            runs = [
                f"{self.state(run)}: {self.log_of(run)}" for run in self._runs.get(benchmark, ())
            ]
            raise AssertionError("\n".join([f"{error}; {self.ledger(benchmark)}", *runs])) from None

    def no_job_runs(self, benchmark: str, seconds: float = PATIENCE_SECONDS) -> Ledger:
        """Wait until no job of the benchmark is running; return the list."""
        wait_for(
            f"the end of the jobs of {benchmark}",
            lambda: not self.ledger(benchmark).running,
            seconds,
        )
        return self.ledger(benchmark)

    # Processes

    def process(self, name: str) -> int:
        """Return the PID of the machine's `server` or `worker`."""
        return int(json.loads((self.machine.folder / f"{name}.json").read_text())["pid"])

    def flow_process(self, run: str) -> int:
        """Return the PID of the run's process."""
        return int(wait_for(f"the process of run {run}", lambda: next(_processes_of(run), None)))


@dataclass(frozen=True)
class RenewingSweep:
    """A sweep on a separate machine whose server was killed and restarted during it."""

    world: World
    run: str
    lost: str
    """A parallel run whose lease has expired at the server, as after a longer outage."""
    release: Callable[[], None]
    restarted_at: float


def _processes_of(run: str) -> Iterator[int]:
    wanted = f"PREFECT__FLOW_RUN_ID={run}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def is_alive(pid: int) -> bool:
    """Return True if the process is running; a zombie is not."""
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process."""
    os.kill(pid, number)
