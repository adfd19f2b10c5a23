"""Render a job as a batch script, which depends only on the job's spec.

The script records its own starts and ends in the job's folder, because a cluster without accounting
deletes a job MinJobAge (by default 300 s) after its end.
"""

from __future__ import annotations

import math
import re
import shlex
from functools import lru_cache
from itertools import islice
from pathlib import PurePath
from typing import Any

from nodesweep.configs.distribution import TorchDistributed
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.scaling.job import JobSpec
from nodesweep.scaling.outcome.observed import ALL_REDUCES, TIME_ALL_REDUCES
from nodesweep.scaling.secrets import secrets_of_job

SCRIPT = "script"
"""The only key of a request."""
NOT_THE_OWNER = 96
"""Exit code of a script if an earlier submission owns the job's name."""
CLOCK_FOLDER = ".nodesweep"
"""Folder next to the code with the files that measure it (inputs.py)."""
_DIRECTIVE = "#SBATCH --"
_COMMENT = "nodesweep:"
_OF_RESUME = re.compile(rf"^{_DIRECTIVE}(account=.*|(no-)?requeue)\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (\w+)=", re.MULTILINE)

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
# srun's tasks run this with their command as arguments, since only a task knows its node.
_TORCHRUN = (
    'export SM_CURRENT_HOST="$SLURMD_NODENAME"; exec torchrun --nnodes="$SLURM_NNODES"'
    ' --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"'
)
# The program starts without the times if anything fails.
_EXCHANGE = """\
rm -f "$job_folder/all-reduces"
timeout --kill-after=10 120 {step} || true
if [ -s "$job_folder/all-reduces" ]; then
    export {variable}="$(cat "$job_folder/all-reduces")"
fi
"""
# Inline, because a variable of this name could be the program's. Python runs in the code's folder,
# and -I keeps it from importing the program's modules.
_FREE_PORT = (
    "$(python3 -I -c 'import socket as s; print(s.create_server((\"\", 0)).getsockname()[1])')"
)
_SHELLS = {".sh": "bash"}
"""Interpreters of programs that are not in Python, by file suffix."""
_PROGRAM = 'export SM_CURRENT_HOST="$SLURMD_NODENAME"; exec "$@"'


def render(platform: SlurmPlatform, spec: JobSpec) -> dict[str, Any]:
    """Return the job's batch script; see nodesweep.scaling.job.Render.

    The config refuses options that Slurm or this launcher does not support (configs/slurm.py).
    """
    if isinstance(spec.platform, SlurmPlatform):  # an arm may have a different partition
        of_sweep = {"account": platform.account, "requeue": platform.requeue}
        platform = spec.platform.model_copy(update=of_sweep)
    training = spec.training
    environment = {**training.environment, **spec.variables}
    folder = f"{platform.folder}/{spec.name}"
    code = spec.inputs.source_uri or training.source_dir
    lines = [
        "#!/bin/bash -l",
        *(f"{_DIRECTIVE}{line}" for line in _directives(platform, spec)),
        f"{_DIRECTIVE}chdir={folder}",
        f"{_DIRECTIVE}output={folder}/script.log",
        "",
        f"job_folder={folder}",
        _BEGIN.replace("{not_the_owner}", str(NOT_THE_OWNER)),
        *platform.setup,
        _SURROUNDINGS.rstrip("\n"),
        *(f"export {key}={shlex.quote(text)}" for key, text in sorted(_data(spec).items())),
        *(f"export {key}={shlex.quote(text)}" for key, text in sorted(environment.items())),
        f"export SM_USER_ENTRY_POINT={shlex.quote(training.entry_point)}",
        *([] if code is None else _beside_code(code)),
        "",
        *([] if code is None else _exchange(platform, spec, code)),
        _srun(platform, spec),
    ]
    return {SCRIPT: "\n".join(lines) + "\n"}


def is_same_job(script: str, other: str) -> bool:
    """Return True if scripts differ at most in account and requeue, which a resume may change."""
    return _OF_RESUME.sub("", script) == _OF_RESUME.sub("", other)


def read_script(script: str) -> tuple[int, str]:
    """Return the number of a job's nodes and their type."""
    values = dict(
        line.removeprefix(_DIRECTIVE).split("=", 1)
        for line in script.splitlines()
        if line.startswith(_DIRECTIVE) and "=" in line
    )
    return int(values["nodes"]), values["comment"].removeprefix(_COMMENT)


@lru_cache(maxsize=1024)
def secrets_of_script(script: str) -> tuple[str, ...]:
    """Return the values in a job's script that must not appear in any output."""
    environment = {
        match[1]: word
        for match in _EXPORT.finditer(script)
        for word in _words(script[match.end() :], 1)
    }
    arguments = _words(script[max(0, script.find("\nsrun --nodes=")) :])
    values = (word[2:].partition("=") for word in arguments if word.startswith("--"))
    return tuple(secrets_of_job({name: text for name, _, text in values}, environment))


def _words(text: str, most: int | None = None) -> list[str]:
    """Return the first `most` words of a part of a script, without quotes."""
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.commenters = True, ""
    try:
        return list(islice(words, most))
    except ValueError:  # a line of `setup` with an odd quote
        return []


def _beside_code(code: str) -> list[str]:
    clock = shlex.quote(f"{code}/{CLOCK_FOLDER}")
    return [f'export PYTHONPATH={clock}"${{PYTHONPATH:+:$PYTHONPATH}}"', f"cd {shlex.quote(code)}"]


def _data(spec: JobSpec) -> dict[str, str]:
    """Return SageMaker's variables for the folders of the dataset, which all nodes must share."""
    dataset, uri = spec.dataset, spec.inputs.dataset_uri
    if dataset is None or uri is None:
        return {}
    if dataset.channel is not None:
        return {f"SM_CHANNEL_{dataset.channel.upper()}": uri}
    return {f"SM_CHANNEL_{name.upper()}": f"{uri}{name}" for name in spec.inputs.dataset_folders}


def _directives(platform: SlurmPlatform, spec: JobSpec) -> list[str]:
    values = {
        "job-name": spec.name,
        "nodes": str(spec.nodes),
        "partition": platform.partition,
        "account": platform.account,
        "qos": platform.qos,
        "reservation": platform.reservation,
        "constraint": platform.constraint,
        "gres": platform.gres,
        "time": str(math.ceil(spec.training.max_runtime_seconds / 60)),
        "comment": f"{_COMMENT}{spec.instance_type}",
        # Two jobs of one name never run at the same time, not even for a second.
        "dependency": "singleton",
        "open-mode": "append",
    }
    # --exclusive doesn't include memory: without --mem=0, the partition's default limits the job.
    flags = ["exclusive", "mem=0"] if platform.exclusive else []
    flags.append("requeue" if platform.requeue else "no-requeue")
    return [f"{key}={text}" for key, text in values.items() if text is not None] + flags


def _exchange(platform: SlurmPlatform, spec: JobSpec, code: str) -> list[str]:
    """Return the step that times all-reduces before the program (nodesweep_exchange.py)."""
    distribution = spec.training.distribution
    if TIME_ALL_REDUCES not in spec.variables or platform.node.gpus:
        return []
    if not isinstance(distribution, TorchDistributed):  # its processes are unknown
        return []
    program = shlex.quote(f"{code}/{CLOCK_FOLDER}/nodesweep_exchange.py")
    processes = distribution.processes_per_node or "auto"
    arguments = f'{program} "$job_folder/all-reduces" {processes} "{_FREE_PORT}"'
    step = _step(platform, spec, 'exec python3 "$@"', arguments)
    return [_EXCHANGE.format(step=step, variable=ALL_REDUCES)]


def _srun(platform: SlurmPlatform, spec: JobSpec) -> str:
    training = spec.training
    arguments = [f"--{key}={value}" for key, value in spec.hyperparameters.items()]
    distribution = training.distribution
    if isinstance(distribution, TorchDistributed):
        # torchrun's "auto" means one process per accelerator, or per core if there is none
        each = f"--nproc-per-node={distribution.processes_per_node or 'auto'}"
        start, command = _TORCHRUN, [each, training.entry_point, *arguments]
    else:
        interpreter = _SHELLS.get(PurePath(training.entry_point).suffix, "python3")
        start, command = _PROGRAM, [interpreter, training.entry_point, *arguments]
    return _step(platform, spec, start, shlex.join(command))


def _step(platform: SlurmPlatform, spec: JobSpec, start: str, arguments: str) -> str:
    """Return the srun of a shell command with these words of the script on every node."""
    # One task per node would be bound to one core without --cpu-bind=none.
    options = (
        f"srun --nodes={spec.nodes} --ntasks={spec.nodes} --ntasks-per-node=1 --cpu-bind=none"
        ' --kill-on-bad-exit=1 --open-mode=append --output="$job_folder/node-%n.log"'
    )
    inside = ""
    if platform.container_image is not None:
        image = shlex.quote(platform.container_image)
        mounts = [platform.folder]
        if spec.dataset is not None and spec.inputs.dataset_uri is not None:
            mounts.append(spec.inputs.dataset_uri.rstrip("/"))
        pairs = shlex.quote(",".join(f"{folder}:{folder}" for folder in mounts))
        if platform.container_runtime == "apptainer":
            gpus = "--nv " if platform.node.gpus else ""
            inside = f'apptainer exec {gpus}--pwd "$PWD" --bind {pairs} {image} '
        else:
            options += f" --container-image={image} --container-mounts={pairs}"
    return f"{options} \\\n    {inside}bash -c {shlex.quote(start)} bash {arguments}"
