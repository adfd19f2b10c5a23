"""The sweep of a run: separate sweeps where several runs begin simultaneously, the same sweep in
every retry, and the sweep that --resume names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prefect.settings import PREFECT_API_URL

import nodesweep.flows.scaling_benchmark
import nodesweep.flows.stages.ending
import nodesweep.flows.stages.sweep
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.launch.registry import backend_of
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec
from nodesweep.tasks.sweeps.ids import claim_sweep_id
from nodesweep.tasks.sweeps.records import Sweeps
from tests.flows.simulated_sweep import ledger, nodesweep_run, write_config

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = 3
IN_THE_SAME_SECOND = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
import nodesweep.flows.scaling_benchmark
from nodesweep.configs.load import load_config
from prefect.runtime import flow_run

class SameSecond:
    scheduled_start_time = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
    def __getattr__(self, name):
        return getattr(flow_run, name)

nodesweep.flows.scaling_benchmark.flow_run = SameSecond()
config = load_config(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(nodesweep.flows.scaling_benchmark.scaling_benchmark(config).sweep_id, flush=True)
"""


@pytest.mark.slow
def test_runs_that_begin_in_the_same_second_are_sweeps_of_their_own(
    simulated: Platform, sweep_config: Configs, tmp_path: Path
) -> None:
    """The runs are separate processes, with a bucket that does not exist yet."""
    with simulated() as served:
        path = write_config(sweep_config(served, sweep={"node_counts": [1]}), tmp_path)
        runs = [
            subprocess.Popen(
                [sys.executable, "-c", IN_THE_SAME_SECOND, str(path)],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "PREFECT_API_URL": str(PREFECT_API_URL.value()),
                    # so many at once meet SQLite's refusals more often than five tries hold
                    "PREFECT_CLIENT_MAX_RETRIES": "8",
                    "PYTHONPATH": str(REPOSITORY),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(RUNS)
        ]
        try:
            for run in runs:
                assert run.stdout is not None and run.stdout.readline() == "ready\n"
            for run in runs:
                assert run.stdin is not None
                run.stdin.write("go\n")
                run.stdin.flush()
            said = [run.communicate(timeout=600) for run in runs]
        finally:
            for run in runs:
                run.kill()
        failed = [words for run, (_, words) in zip(runs, said, strict=True) if run.returncode]
        assert not failed, failed[0][-2000:]
        sweeps = {output.strip() for output, _ in said}
        assert {sweep.split("-")[1] for sweep in sweeps} == {
            f"2026112212000{number}" for number in range(RUNS)
        }
        assert ledger(served) == [(1, 1, "Completed")] * RUNS, "each has its own job"


@pytest.mark.drawn
def test_retried_flow_run_keeps_its_own_id(
    simulated: Platform, sweep_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run was the first to use the second in which this run began."""
    begun: list[str] = []
    submit = nodesweep.flows.stages.sweep.submit_training_job

    def crash_once(platform: Any, spec: JobSpec) -> Any:
        begun.append(str(names.sweep_of_job(spec.name)))
        if len(begun) == 1:
            raise RuntimeError("the first try ends here")
        return submit(platform, spec)

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "submit_training_job", crash_once)
    claim = claim_sweep_id

    def second_comer(sweeps: Sweeps, started: datetime, run: str) -> str:
        if not begun:
            claim(sweeps, started, "another run")
        return claim(sweeps, started, run)

    monkeypatch.setattr(nodesweep.flows.scaling_benchmark, "claim_sweep_id", second_comer)
    with simulated() as served:
        config = sweep_config(served, sweep={"node_counts": [1]})
        result = scaling_benchmark.with_options(retries=1)(config)
        assert ledger(served) == [(1, 1, "Completed")]
    assert set(begun) == {result.sweep_id}


def test_hook_of_a_cancelled_run_stops_the_sweep_that_this_run_claimed(
    simulated: Platform, sweep_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(
        nodesweep.flows.stages.ending,
        "stop_sweep_jobs_now",
        lambda platform, sweep: stopped.append(sweep),
    )
    shown: list[str] = []
    monkeypatch.setattr(
        nodesweep.flows.stages.ending, "end_job_runs", lambda run, view: shown.append(view.name)
    )
    started, run_id = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC), uuid4()
    hook: Any = nodesweep.flows.stages.ending.stop_jobs_of_run
    with simulated() as served:
        config = sweep_config(served)
        monkeypatch.setattr(
            nodesweep.flows.stages.ending, "config_from_parameters", lambda parameters: config
        )
        run = SimpleNamespace(id=run_id, parameters={}, expected_start_time=started)
        hook(None, run, None)
        assert stopped == [], "it was cancelled before it had a sweep"
        served.s3.create_bucket(Bucket=config.platform.bucket)
        store = backend_of(config.platform).store
        claim_sweep_id(Sweeps(store, config), started, "another run")
        own = claim_sweep_id(Sweeps(store, config), started, str(run_id))
        hook(None, run, None)
    assert stopped == [own]
    assert shown == ["Unwatched", "Cancelled"]


OWN, OTHER = "bench-20261122120000-{digest}", "bench-20261122120000-0a1b2c3d"


@pytest.mark.parametrize(
    ("name", "resumes", "is_stopped"),
    [
        (f"scaling-{OWN}", True, True),
        (f"scaling-{OWN}", False, False),
        (f"scaling-{OTHER}", True, False),
        (OWN, True, False),
        ("scaling-local", True, False),
        ("brave-otter", True, False),
        ("again", True, False),
    ],
)
def test_hook_of_a_cancelled_resume_stops_the_sweep_that_this_run_is_named_after(
    make_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    resumes: bool,
    is_stopped: bool,
) -> None:
    """A user can choose the name of a run until the run begins."""
    stopped: list[str] = []
    ending, config = nodesweep.flows.stages.ending, make_config()
    own = names.sweep_id(config, datetime(2026, 11, 22, 12, tzinfo=UTC))
    monkeypatch.setattr(ending, "config_from_parameters", lambda parameters: config)
    monkeypatch.setattr(ending, "claimed_sweep_id", lambda *_: None)
    monkeypatch.setattr(ending, "end_job_runs", lambda *_: None)
    monkeypatch.setattr(ending, "stop_sweep_jobs_now", lambda backend, sweep: stopped.append(sweep))
    run: Any = SimpleNamespace(
        id=uuid4(),
        name=name.format(digest=own[-8:]),
        parameters={"resume": resumes, "sweep_id": None},
        expected_start_time=datetime.now(UTC),
    )
    ending.stop_jobs_of_run(scaling_benchmark, run, cast(Any, None))
    assert stopped == [own] * is_stopped


def test_no_job_of_a_crashed_or_failed_run_is_left_as_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[UUID] = []
    monkeypatch.setattr(nodesweep.flows.stages.ending, "end_job_runs", ended.append)
    run: Any = SimpleNamespace(id=uuid4())
    for hooks in (scaling_benchmark.on_crashed_hooks, scaling_benchmark.on_failure_hooks):
        for hook in hooks:
            hook(scaling_benchmark, run, cast(Any, None))
    assert ended == [run.id] * 2


@pytest.mark.usefixtures("quiet")
def test_resume_without_an_id_asks_for_it_where_it_is_not_certain(
    simulated: Platform, sweep_config: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is killed before its sweep is recorded; the sweep before it is finished, and must not
    be taken for it.
    """
    with simulated() as served:
        config = sweep_config(served, sweep={"node_counts": [1]})
        finished = scaling_benchmark(config).sweep_id
        uncertain = nodesweep_run(config, tmp_path, "--resume")
        assert uncertain.exit_code == 2, uncertain.output
        assert finished in uncertain.output

        def die(*_: Any) -> Any:
            raise SystemExit("killed")

        with monkeypatch.context() as patches, pytest.raises(SystemExit):
            patches.setattr(nodesweep.flows.scaling_benchmark.Preparation, "prepare_inputs", die)
            scaling_benchmark(config)
        unrecorded = nodesweep_run(config, tmp_path, "--resume")
        assert unrecorded.exit_code == 2, unrecorded.output
        assert f"--resume {finished}" in unrecorded.output
        assert ledger(served) == [(1, 1, "Completed")]
        named = nodesweep_run(config, tmp_path, "--resume", finished)
        assert named.exit_code == 0, named.output
        assert (
            json.loads((tmp_path / "reports" / "latest" / "report.json").read_text())["sweep_id"]
            == finished
        )
