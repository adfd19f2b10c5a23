"""Render a job as a batch script: a pure function of its spec, with nothing filled in later.

The script records its own starts and ends in the job's folder, because a cluster without accounting
forgets a job MinJobAge (by default 300 s) after its end.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.scaling.job import JobSpec

SCRIPT = "script"
"""The only key of a JobSpec's request here."""
NOT_THE_OWNER = 96
"""Exit code of a script whose job's name is owned by an earlier submission."""
_DIRECTIVE = "#SBATCH --"
_COMMENT = "nodesweep:"

_BEGIN = """\
# Of two submissions of this name, only the first to create this link runs.
printf %s "$SLURM_JOB_ID" >"$job_folder/.owner.$SLURM_JOB_ID"
ln "$job_folder/.owner.$SLURM_JOB_ID" "$job_folder/owner" 2>/dev/null
rm -f "$job_folder/.owner.$SLURM_JOB_ID"
owner=$(cat "$job_folder/owner")
if [ "$owner" != "$SLURM_JOB_ID" ]; then
    echo "job $owner was submitted under this name before; job $SLURM_JOB_ID does nothing" >&2
    exit {not_the_owner}
fi
echo "start $(date +%s)" >>"$job_folder/runs"
trap 'code=$?; echo "end $(date +%s) $code" >>"$job_folder/runs"' EXIT
trap 'exit 143' TERM
set -e
"""
_SURROUNDINGS = """\
mkdir -p "$job_folder/output/data" "$job_folder/output/model"
MASTER_ADDR=$(hostname -f 2>/dev/null || hostname)
MASTER_PORT=$(python3 -c 'import socket as s; print(s.create_server(("", 0)).getsockname()[1])')
SM_HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/.*/"&"/' | paste -sd, -)
export MASTER_ADDR MASTER_PORT SM_HOSTS="[$SM_HOSTS]"
export SM_OUTPUT_DATA_DIR="$job_folder/output/data" SM_MODEL_DIR="$job_folder/output/model"
"""
# srun's tasks run this with their command as arguments. Which node it is, only a task knows.
_TORCHRUN = (
    'export SM_CURRENT_HOST="$SLURMD_NODENAME"; exec torchrun --nnodes="$SLURM_NNODES"'
    ' --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"'
)
_PROGRAM = 'export SM_CURRENT_HOST="$SLURMD_NODENAME"; exec "$@"'


def build_spec(
    platform: SlurmPlatform,
    name: str,
    nodes: int,
    command: Sequence[str],
    max_runtime_seconds: int,
    launch: Literal["torchrun", "program"] = "torchrun",
    processes_per_node: int = 1,
    environment: Mapping[str, str] | None = None,
) -> JobSpec:
    """Return the job that runs this command.

    Args:
        platform: the cluster.
        name: the job's name.
        nodes: number of nodes.
        command: the program and its arguments.
        max_runtime_seconds: time limit; Slurm rounds it up to whole minutes.
        launch: torchrun starts one torchrun per node, which starts the processes; program lets
            Slurm start the processes themselves, for a program that reads Slurm's variables.
        processes_per_node: number of the program's processes on each node.
        environment: the program's environment variables. They are readable in the script.
    """
    folder = f"{platform.folder}/{name}"
    lines = [
        "#!/bin/bash -l",
        *(
            f"{_DIRECTIVE}{line}"
            for line in _directives(platform, name, nodes, max_runtime_seconds)
        ),
        f"{_DIRECTIVE}chdir={folder}",
        f"{_DIRECTIVE}output={folder}/script.log",
        "",
        f"job_folder={folder}",
        _BEGIN.replace("{not_the_owner}", str(NOT_THE_OWNER)),
        *platform.setup,
        _SURROUNDINGS.rstrip("\n"),
        *(f"export {key}={shlex.quote(text)}" for key, text in sorted((environment or {}).items())),
        "",
        _srun(platform, nodes, command, launch, processes_per_node),
    ]
    request = {SCRIPT: "\n".join(lines) + "\n"}
    return JobSpec(name, nodes, node_type(platform), request)


def node_type(platform: SlurmPlatform) -> str:
    """Return what distinguishes the cluster's kinds of nodes, in a word for reports."""
    parts = (platform.partition or "default", platform.constraint, platform.gres)
    return "/".join(part for part in parts if part)


def read_spec(name: str, script: str) -> JobSpec:
    """Return the spec whose script this is."""
    values = dict(
        line.removeprefix(_DIRECTIVE).split("=", 1)
        for line in script.splitlines()
        if line.startswith(_DIRECTIVE) and "=" in line
    )
    instance_type = values["comment"].removeprefix(_COMMENT)
    return JobSpec(name, int(values["nodes"]), instance_type, {SCRIPT: script})


def _directives(
    platform: SlurmPlatform, name: str, nodes: int, max_runtime_seconds: int
) -> list[str]:
    values = {
        "job-name": name,
        "nodes": str(nodes),
        "partition": platform.partition,
        "account": platform.account,
        "qos": platform.qos,
        "reservation": platform.reservation,
        "constraint": platform.constraint,
        "gres": platform.gres,
        "time": str(math.ceil(max_runtime_seconds / 60)),
        "comment": f"{_COMMENT}{node_type(platform)}",
        # Two jobs of one name never run at the same time, not even for a second.
        "dependency": "singleton",
        "open-mode": "append",
    }
    # Memory isn't part of --exclusive: without --mem=0 the partition's default limits the job.
    flags = ["exclusive", "mem=0"] if platform.exclusive else []
    flags.append("requeue" if platform.requeue else "no-requeue")
    return [f"{key}={text}" for key, text in values.items() if text is not None] + flags


def _srun(
    platform: SlurmPlatform,
    nodes: int,
    command: Sequence[str],
    launch: str,
    processes_per_node: int,
) -> str:
    tasks_per_node = 1 if launch == "torchrun" else processes_per_node
    # One task per node would be bound to one core without --cpu-bind=none.
    options = (
        f"srun --nodes={nodes} --ntasks={nodes * tasks_per_node}"
        f" --ntasks-per-node={tasks_per_node} --cpu-bind=none --kill-on-bad-exit=1"
        ' --open-mode=append --output="$job_folder/node-%n.log"'
    )
    if platform.container_image is not None:
        options += (
            f" --container-image={platform.container_image}"
            ' --container-mounts="$job_folder:$job_folder"'
        )
    start = _PROGRAM
    arguments = list(command)
    if launch == "torchrun":
        start, arguments = _TORCHRUN, [f"--nproc-per-node={processes_per_node}", *command]
    return f"{options} \\\n    bash -c {shlex.quote(start)} bash {shlex.join(arguments)}"
