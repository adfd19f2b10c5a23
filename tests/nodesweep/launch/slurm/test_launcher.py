"""The launcher given the output of commands, without a cluster."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodesweep.errors import BackendUnavailable, JobRefused
from nodesweep.launch.slurm import backend, launcher
from nodesweep.launch.slurm.commands import CommandFailed
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.launch.slurm.queue import Queue
from nodesweep.scaling import names
from nodesweep.scaling.job import JobStatus
from tests.nodesweep.launch.slurm.cluster import slurm_platform, until_told_spec

JOB = "bench-20260102030405-0123abcd-n2-r1-a1-abcd"


def jobs_of(folder: Path, squeue: str = "", runs: str = "") -> SlurmJobs:
    """Return a launcher of a job on a cluster whose slurmdbd is down."""

    def answer(command: list[str]) -> str:
        if command[0] == "sacct":
            raise CommandFailed("sacct failed", "Connection refused")
        return squeue

    jobs = SlurmJobs(slurm_platform(folder), Queue(answer))
    job = folder / JOB
    job.mkdir()
    (job / "job.sh").write_text(jobs.render(until_told_spec(JOB, 2))["script"])
    (job / "job.json").write_text(json.dumps({"job_id": 12, "submitted_at": 1_767_000_000.0}))
    (job / "runs").write_text(runs)
    return jobs


def test_broken_accounting_loses_no_job_whose_script_recorded_its_end(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, runs="start 1767000010\nend 1767000070 0\n")
    job = jobs.status(JOB)
    assert job is not None and job.completed and job.billed_seconds == 60


def test_broken_accounting_is_an_error_if_the_end_of_a_job_is_unknown(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, runs="start 1767000010\n")
    with pytest.raises(BackendUnavailable, match="sacct failed"):
        jobs.status(JOB)


SACCT = f"""\
12|{JOB}|COMPLETED|None|2|2026-11-28T02:47:29|2026-11-28T02:47:29|2026-11-28T02:48:09|0:0|billing=2,cpu=2,node=2|00:08.205|80
12.batch|batch|COMPLETED||1|2026-11-28T02:47:29|2026-11-28T02:47:29|2026-11-28T02:48:09|0:0|cpu=1,mem=0,node=1|00:00.012|40
12.0|python3|COMPLETED||2|2026-11-28T02:47:30|2026-11-28T02:47:30|2026-11-28T02:48:08|0:0|cpu=2,mem=0,node=2|00:08.193|76
"""
"""Words of sacct 22.05 with jobacct_gather/linux, of 4 s of computing on each of two nodes."""


def use_of_job(folder: Path, sacct: str, **platform: Any) -> Mapping[str, float]:
    jobs_of(folder)
    return SlurmJobs(slurm_platform(folder, **platform), Queue(lambda _: sacct)).cpu_use(JOB)


def test_the_cpu_use_of_a_job_is_what_the_accounting_sums_over_its_steps(tmp_path: Path) -> None:
    found = use_of_job(tmp_path, SACCT)
    assert found == pytest.approx(
        {"cpu_percent": 10.256, "allocated_cpu_percent": 10.256}, abs=0.001
    )


def test_the_cpu_use_of_nodes_with_gpus_is_no_share_of_their_work(tmp_path: Path) -> None:
    assert list(use_of_job(tmp_path, SACCT, node={"cores": 1, "gpus": 2})) == ["cpu_percent"]


@pytest.mark.parametrize(
    "sacct",
    [
        pytest.param("", id="no accounting"),
        pytest.param(SACCT.replace("00:08.205", "00:00:00"), id="jobacct_gather/none"),
        pytest.param(SACCT.replace("2026-11-28T02:48:09", "Unknown"), id="not yet recorded"),
        pytest.param(SACCT.replace("|80", "|0"), id="shorter than a second"),
        pytest.param(SACCT.replace(JOB, "of-another-name"), id="another job of the number"),
    ],
)
def test_a_cpu_use_that_the_cluster_does_not_account_is_unknown(sacct: str, tmp_path: Path) -> None:
    assert use_of_job(tmp_path, sacct) == {}


def test_broken_accounting_leaves_the_cpu_use_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(tmp_path)
    monkeypatch.setattr(backend, "_jobs", lambda section: jobs)
    job = JobStatus(JOB, "completed")
    assert backend.bind(jobs.platform).read_utilisation(job) == {}


def test_a_job_waits_for_nodes_that_are_down_but_not_for_what_no_change_of_nodes_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[str]] = []
    monkeypatch.setattr(launcher, "run", sent.append)
    row = f"12|{JOB}|PENDING|{{}}|2|2026-01-02T03:04:05|N/A|N/A|0|0||\n"
    waiting = jobs_of(tmp_path, row.format("PartitionNodeLimit")).status(JOB)
    assert waiting is not None and waiting.state == "running" and not sent
    jobs = SlurmJobs(slurm_platform(tmp_path), Queue(lambda _: row.format("PartitionTimeLimit")))
    assert jobs.status(JOB) is not None and sent == [["scancel", "12"]]


def test_a_cancel_that_was_cut_off_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed between its mark and scancel."""
    sent: list[list[str]] = []
    monkeypatch.setattr(launcher, "run", sent.append)
    jobs = jobs_of(tmp_path, f"12|{JOB}|PENDING|InvalidQOS|2|2026-01-02T03:04:05|N/A|N/A|0|0||\n")
    (tmp_path / JOB / "stopped").write_text("InvalidQOS: Slurm can never start the job")
    assert jobs.status(JOB) is not None and sent == [["scancel", "12"]]


def test_jobs_of_other_folders_programs_and_the_past_hold_no_nodes(tmp_path: Path) -> None:
    row = "{}|{}|{}|None|2|2026-01-02T03:04:05|N/A|N/A|0|0||\n"
    elsewhere = JOB.replace("-n2-", "-n4-")
    squeue = row.format(14, elsewhere, "RUNNING") + row.format(13, "somebodys-job", "RUNNING")
    [held] = jobs_of(tmp_path, squeue + row.format(12, JOB, "PENDING")).held()
    assert (held.name, held.is_running, held.read_tag()) == (JOB, True, names.sweep_of_job(JOB))
    assert held.age_seconds > 0
    for state in ("COMPLETING", "FAILED"):
        ended = SlurmJobs(
            slurm_platform(tmp_path), Queue(lambda _, state=state: row.format(12, JOB, state))
        )
        assert list(ended.held()) == []


def test_looking_for_held_jobs_cancels_and_writes_nothing_and_survives_jobs_that_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run of the reaper looks at all sweeps, those of other runs, too."""
    sent: list[list[str]] = []
    monkeypatch.setattr(launcher, "run", sent.append)
    row = "{}|{}|{}|{}|2|2026-01-02T03:04:05|N/A|2026-01-02T03:05:05|0|0||\n"
    other = JOB.replace("-n2-", "-n4-")
    squeue = row.format(12, JOB, "PENDING", "PartitionTimeLimit")
    jobs = jobs_of(tmp_path, squeue + row.format(13, other, "FAILED", "None"))
    shutil.copytree(tmp_path / JOB, tmp_path / other)
    (tmp_path / other / "job.json").write_text('{"job_id": 11, "submitted_at": 1767000000}')
    assert [held.name for held in jobs.held()] == [JOB]
    (tmp_path / other / "job.json").write_text('{"job_id": 13, "submitted_at": 1767000000}')
    assert [held.name for held in jobs.held()] == [JOB]
    assert not sent and not list(tmp_path.glob("*/ended.json"))


def test_a_job_of_another_account_is_adopted_but_not_one_of_another_partition(
    tmp_path: Path,
) -> None:
    jobs_of(tmp_path, runs="start 1767000010\nend 1767000070 0\n")
    queue, spec = Queue(lambda _: ""), until_told_spec(JOB, 2)
    platform = slurm_platform(tmp_path, account="other", requeue=True)
    assert SlurmJobs(platform, queue).submit(spec).completed
    with pytest.raises(JobRefused, match="another script"):
        SlurmJobs(slurm_platform(tmp_path, partition="other"), queue).submit(spec)


@pytest.mark.parametrize("answer", ["", "\n", "Submitted batch job 12\n"])
def test_an_answer_of_sbatch_without_a_number_leaves_open_if_there_is_a_job(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "run", lambda *arguments: answer)
    jobs = SlurmJobs(slurm_platform(tmp_path), Queue(lambda _: ""))
    with pytest.raises(CommandFailed, match=f"reported no job id for {JOB}"):
        jobs.submit(until_told_spec(JOB, 2))
    assert (tmp_path / JOB / "job.sh").exists()


def test_the_number_of_a_job_comes_after_a_banner_and_before_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "run", lambda *arguments: "Welcome to alps\n12;alps\n")
    jobs = SlurmJobs(slurm_platform(tmp_path), Queue(lambda _: ""))
    assert jobs.submit(until_told_spec(JOB, 2)).state == "running"
    assert json.loads((tmp_path / JOB / "job.json").read_text())["job_id"] == 12
