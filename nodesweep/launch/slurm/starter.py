"""Write a first config for this login node's cluster, based on sinfo and scontrol."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from nodesweep.configs.load import ConfigError
from nodesweep.launch.slurm.commands import run
from nodesweep.launch.slurm.partitions import SINFO, read_partitions

_GPUS = re.compile(r"\bgpu(?::([^:,()]+))?:(\d+)(?![\w.])")
"""GPUs of a node as sinfo prints them, such as gpu:a100:4(S:0-1) or gpu:1g.5gb:14."""
_CLUSTER = re.compile(r"^ClusterName *= *(\S+)", re.MULTILINE)
_MOST_NODES = 8
_TEMPLATE = """\
# A first sweep on the cluster {cluster}; nodesweep/launch/slurm/README.md has the limitations.
#   nodesweep plan --online FILE    checks partition, account and QOS, and starts nothing
name: "{name}"
dataset: none                  # none, or a section whose source is on the shared file system
training:
  source_dir: {source_dir}     # copied to platform.folder
  entry_point: {entry_point}
  instance_type: "{partition}-node"  # your name for this node type
  max_runtime_seconds: 3600    # sbatch --time
  # torch_distributed starts the program with torchrun; none starts it once per node
  distribution: {distribution}
  # batch: {{policy: fixed_global, size: 256}}    # strong scaling; see docs/config.md
  hyperparameters: {{}}          # each is passed as `--name=value`, e.g. epochs: 8
sweep:
  node_counts: {counts}
  repeats: 1                   # 3 or more for confidence intervals
  queue_deadline_seconds: 7200 # a job that waits longer fails; raise it on a busy cluster
platform:
  launcher: slurm
  cluster: "{cluster}"
  folder: {folder}
  partition: "{partition}"       # {others}; account, qos, constraint and gres can also be set
  node: {node}  # from sinfo; set usd_per_hour for costs in USD
{gres}  setup: []                    # commands before the program: module load …, source …
"""


def first_config(name: str, program: Path, top: Path, shared: Path, is_python: bool) -> str:
    """Return the text of a config that runs a program in the cluster's default partition.

    Args:
        name: The benchmark's name.
        program: Absolute path of the program.
        top: Folder of the program's code.
        shared: Folder that the login node and all compute nodes share.
        is_python: True if torchrun can start it; other programs are started once per node.

    Raises:
        CommandFailed: The cluster does not respond.
        ConfigError: The cluster has no partition.
    """
    partitions, default = read_partitions(run(SINFO))
    if not partitions:
        raise ConfigError("sinfo lists no partition you can use; ask your cluster admins")
    chosen = default or next(iter(partitions))
    mine, others = partitions[chosen], sorted(partitions.keys() - {chosen})
    gpus = [(match[1], int(match[2])) for gres in mine.gres if (match := _GPUS.search(gres))]
    node: dict[str, object] = {"cores": mine.cores if math.isfinite(mine.cores) else 1}
    if math.isfinite(mine.memory_mib):
        node["memory_gib"] = round(mine.memory_mib / 1024, 1)
    if len(gpus) == len(mine.gres):
        model, node["gpus"] = min(gpus, key=lambda each: each[1])
        node |= {} if model is None else {"gpu": re.sub("[^A-Za-z0-9]+", " ", model).strip()[:40]}
    kind = "{kind: torch_distributed, processes_per_node: 1}"
    if "gpus" in node:
        kind = "{kind: torch_distributed}"  # one process per GPU
    found = _CLUSTER.search(run(["scontrol", "show", "config"]))
    words = re.findall("[a-z0-9]+", found[1].lower() if found else "")
    counts = [count for count in (1, 2, 4, _MOST_NODES) if count <= max(mine.nodes, 1)]
    return _TEMPLATE.format(
        name=name,
        source_dir=json.dumps(str(top)),
        entry_point=json.dumps(program.relative_to(top).as_posix()),
        distribution=kind if is_python else "{kind: none}",
        counts=counts,
        cluster="-".join(words)[:20].rstrip("-") or "cluster",
        folder=json.dumps(str(shared)),
        partition=chosen,
        others=f"others: {', '.join(others)}" if others else "the only one",
        node=json.dumps(node),
        gres=f'  gres: "gpu:{node["gpus"]}"\n' if "gpus" in node else "",
    )
