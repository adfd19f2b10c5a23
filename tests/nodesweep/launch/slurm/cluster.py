"""A real Slurm cluster on this machine: slurmctld and eight slurmd, with separate folders and
ports."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.local.tests.platform_client import wait_until
from nodesweep.configs.atomic import write_atomic
from nodesweep.configs.distribution import NoDistribution
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.configs.training import TrainingConfig
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobState, ResolvedInputs

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun")
FOUR, EIGHT, URGENT, SMALL = "four", "eight", "urgent", "small"
"""Partitions: the first four nodes; all; all, at the expense of the others; at most two nodes."""
_NODES = 8
CODE = Path(__file__).parent / "code"
_CONF = """\
ClusterName=nodesweep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/ended
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=2
SchedulerParameters=batch_sched_delay=0
SlurmdTimeout={patience_seconds}
MessageTimeout={patience_seconds}
EnforcePartLimits=ALL
{nodes}
PartitionName=four Nodes=n[1-4] Default=YES
PartitionName=eight Nodes=n[1-8] PriorityTier=1
PartitionName=urgent Nodes=n[1-8] PriorityTier=2
PartitionName=small Nodes=n[1-8] MaxNodes=2
"""


class Cluster:
    """The cluster's processes; `shared` is the folder that its nodes share."""

    def __init__(self, folder: Path, patience_seconds: int) -> None:
        self._patience_seconds = patience_seconds
        self.folder, self.shared = folder, folder / "shared"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start everything, and wait until the nodes are idle."""
        for name in ("state", "shared"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        controller_port, *ports = _free_ports(1 + _NODES)
        nodes = "\n".join(
            f"NodeName=n{number} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port}"
            " CPUs=1 RealMemory=100"
            for number, port in enumerate(ports, 1)
        )
        (self.folder / "slurm.conf").write_text(
            _CONF.format(
                host=socket.gethostname(),
                controller_port=controller_port,
                folder=self.folder,
                nodes=nodes,
                patience_seconds=self._patience_seconds,
            )
        )
        munge = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        self._run(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={munge['socket']}",
            f"--pid-file={munge['pid']}",
            f"--log-file={munge['log']}",
            f"--seed-file={munge['seed']}",
        )
        wait_until(munge["socket"].exists)
        self.start_controller()
        for number in range(1, _NODES + 1):
            self.start_node(f"n{number}")
        self.wait_for_nodes()

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.output").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [name.partition(" ")[0], *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def start_controller(self) -> None:
        self._run("slurmctld", "-D")
        wait_until(lambda: self.command("scontrol", "ping", check=False).returncode == 0)

    def start_node(self, node: str) -> None:
        self._run(f"slurmd {node}", "-D", "-N", node)

    def kill(self, name: str) -> None:
        """Kill `slurmctld` or a node's `slurmd n1` without a warning."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def wait_for_nodes(self) -> None:
        def all_idle() -> bool:
            listed = self.command("sinfo", "-h", "-N", "-p", "eight", "-o", "%N %T").stdout.split(
                "\n"
            )
            return sum(line.endswith(" idle") for line in listed) == _NODES

        wait_until(all_idle, 90)

    def platform(self, **options: Any) -> SlurmPlatform:
        """The config's section for the cluster."""
        return slurm_platform(self.shared, **options)

    def command(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands as an administrator."""
        return subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=check,
        )

    def job_id(self, name: str) -> str:
        """Return the number of the only job of that name."""
        [job_id] = self.command("squeue", "-h", "-t", "all", "-n", name, "-o", "%i").stdout.split()
        return job_id

    def running(self, sweep: str) -> list[str]:
        """Return the names of the sweep's jobs that wait or run."""
        states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"
        listed = self.command("squeue", "-h", states, "-o", "%j").stdout.split()
        return [name for name in listed if names.sweep_of_job(name) == sweep]

    def ended(self, sweep: str) -> list[dict[str, str]]:
        """Return the facts of the sweep's ended jobs, which this slurmctld never forgets."""
        path = self.folder / "ended"
        lines = path.read_text().splitlines() if path.exists() else []
        jobs = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
        return [job for job in jobs if names.sweep_of_job(job["Name"]) == sweep]

    def end(self, job_name: str, state: JobState) -> None:
        """Let the program of until_told_spec() end."""
        code = {"completed": b"0", "failed": b"1"}[state]
        write_atomic(self.shared / job_name / "end", code)

    def say(self, job_name: str, text: str) -> None:
        """Let the program of until_told_spec() print a line."""
        write_atomic(self.shared / job_name / "words", text.encode())

    def end_all(self, jobs: SlurmJobs, sweep: str) -> None:
        """Stop the sweep's jobs and wait for their ends."""
        for job in jobs.jobs_of(sweep):
            jobs.stop(job.name)
        wait_until(lambda: all(job.has_ended for job in jobs.jobs_of(sweep)))

    def stop(self) -> None:
        """Stop all processes of the cluster."""
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process_id in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    def _left(self) -> Sequence[int]:
        """Return the processes of jobs and their slurmstepd, which outlive slurmd.

        Other processes, such as a Prefect server that later tests use, inherit SLURM_CONF from the
        tests.
        """
        found, mark = [], f"SLURM_CONF={self.folder}/".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes()
                is_step = (folder / "comm").read_text().startswith("slurmstepd")
                if mark in environment and (is_step or b"SLURM_JOB_ID=" in environment):
                    found.append(int(folder.name))
        return found


def slurm_platform(folder: Path, **options: Any) -> SlurmPlatform:
    """Return the section of a cluster of nodes with one core, without a price."""
    fields = {"launcher": "slurm", "cluster": "test", "node": {"cores": 1}, "folder": str(folder)}
    return SlurmPlatform.model_validate({**fields, **options})


def until_told_spec(
    name: str, nodes: int, instance_type: str = "main", max_runtime_seconds: int = 3600
) -> JobSpec:
    """Return a job that runs until Cluster.end(), and prints the lines of Cluster.say()."""
    training = TrainingConfig(
        entry_point="until_told.py",
        distribution=NoDistribution(kind="none"),
        instance_type=instance_type,
        max_runtime_seconds=max_runtime_seconds,
    )
    return job_spec(name, nodes, training)


def job_spec(name: str, nodes: int, training: TrainingConfig, code: Path = CODE) -> JobSpec:
    """Return a job without a dataset."""
    return JobSpec(
        name=name,
        digest="digest",
        nodes=nodes,
        repeat=1,
        attempt=1,
        inputs=ResolvedInputs(str(names.sweep_of_job(name)), "", None, source_uri=str(code)),
        training=training,
        dataset=None,
        hyperparameters=training.hyperparameters,
    )


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running_cluster(folder: Path, patience_seconds: int = 10) -> Iterator[Cluster]:
    """Run a cluster that the launcher's commands find, or skip the test with the reason.

    A node that is silent for `patience_seconds` has failed; a busy machine needs more patience.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(
            f"{', '.join(missing)} missing: apt-get install slurmctld slurmd slurm-client munge"
        )
    if os.geteuid() != 0:
        pytest.skip("only root can run slurmd")
    cluster = Cluster(folder, patience_seconds)
    try:
        cluster.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
            patch.setenv("HOME", str(folder))  # the profile of whoever runs the tests is his own
            yield cluster
    finally:
        cluster.stop()
