"""Advice from AWS's own documents for sweeps that run out of memory or scale poorly.

Each piece of advice has a condition and a source. This project has not measured the effect of any
of it. The Amazon SageMaker developer guide, "Distributed training", lists what to do if memory runs
out. The AWS blog post with the reference benchmark reports a gain from SMDDP "for larger cluster
sizes"; here that means a sweep whose efficiency fell below the configured minimum. The SageMaker
Training Compiler of the blog post is left out because nodesweep does not support it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nodesweep.configs.catalogue import InstanceType, UnknownInstanceType, load_catalogue
from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.remedies import BLOG, GUIDE, LOADER_DOC, Setting
from nodesweep.scaling.formats import format_percent, join_words, nodes_text
from nodesweep.scaling.instances.main_config import config_of_main
from nodesweep.scaling.outcome.failure import MemoryShortage, memory_that_ran_out
from nodesweep.scaling.report.caveats import DATA_WAIT_LIMIT
from nodesweep.scaling.report.model import Point, ScalingReport
from nodesweep.scaling.report.tables.budget import CAUSE_TEXTS
from nodesweep.scaling.rules.distribution.options import SMDDP_TYPES
from nodesweep.scaling.rules.learning import single_instance_alternative

# Kinds of data parallelism whose collectives SMDDP would replace.
_OTHER_DATA_PARALLEL = frozenset({"torch_distributed", "pytorchddp", "mpi", "horovod"})
_SHARDING = frozenset({"fsdp", "smp", "deepspeed"})
_WITHOUT_DDP = frozenset({"horovod", "parameter_server", "trainium", "smp_v1", "smp_v2"})


class Advice(NamedTuple):
    """A piece of advice: its subject in a few words, its text and its source."""

    matter: str
    text: str
    source: str


class OutOfMemory(NamedTuple):
    """The evidence that a run ran out of memory, and the steps to try in order."""

    finding: str
    steps: tuple[Advice, ...]


def out_of_memory(report: ScalingReport, point: Point) -> OutOfMemory | None:
    """Return the remedies for a run that failed for lack of memory; None for any other run."""
    if point.status != "Failed":
        return None
    shortage = memory_that_ran_out(point.reason, [*point.log_tail, *point.other_log_tail])
    if shortage is None:
        return None
    instance = _instance(point.instance_type)
    has_accelerators = instance is not None and bool(instance.accelerators)
    steps = (
        _main_memory(instance)
        if shortage.memory != "accelerator" and has_accelerators
        else _ladder(report, point)
    )
    return OutOfMemory(_finding(shortage), tuple(steps))


def out_of_memory_by_index(report: ScalingReport) -> dict[int, OutOfMemory]:
    """Return the remedies for each run that ran out of memory, by its index in `points`.

    Steps that an earlier run already has are not repeated.
    """
    found: dict[int, OutOfMemory] = {}
    shown: set[tuple[Advice, ...]] = set()
    for index, point in enumerate(report.points):
        lack = out_of_memory(report, point)
        if lack is not None:
            found[index] = lack._replace(steps=()) if lack.steps in shown else lack
            shown.add(lack.steps)
    return found


def out_of_memory_line(report: ScalingReport) -> str | None:
    """Return one line that lists the node counts that ran out of memory; None if none did."""
    found = out_of_memory_by_index(report)
    if not found:
        return None
    counts = sorted({report.points[index].nodes for index in found})
    steps = next(iter(found.values())).steps
    return (
        f"Out of memory at {join_words(map(nodes_text, counts))}. Try these steps in order: "
        f"{', '.join(step.matter for step in steps)} (see the report for details)."
    )


def find_guidance(report: ScalingReport) -> tuple[Advice, ...]:
    """Return the published advice that applies to the sweep as a whole.

    If the report has a step budget, the advice addresses the parts that cost efficiency.
    """
    if report.remedies is None:
        return (*_larger_instance(report), *_smddp(report))
    return tuple(
        Advice(
            remedy.change,
            f"{remedy.change}, against {CAUSE_TEXTS[remedy.cause]}; not predicted, since "
            f"{remedy.unmeasured} was not measured",
            remedy.source,
        )
        for remedy in report.remedies.ranked
        if remedy.unmeasured is not None
    )


def setting_of(report: ScalingReport) -> Setting:
    """Return the facts about a sweep that decide which changes are possible."""
    config = config_of_main(report)
    training, dataset = (_section(config, name) for name in ("training", "dataset"))
    kind = _section(training, "distribution").get("kind")
    passed = _section(training, "hyperparameters")
    strategy = passed.get("strategy")
    name = report.conditions.instance_type
    instance = _instance(name)
    counts = [row.nodes for row in report.summary if row.n]
    is_aws = report.platform.kind == "aws"
    return Setting(
        uses_ddp=kind not in _WITHOUT_DDP and strategy not in _SHARDING,
        compresses=passed.get("compress") in ("fp16", "bf16"),
        uses_fsdp=strategy == "fsdp",
        copies_data=dataset.get("distribution") == "FullyReplicated"
        and dataset.get("input_mode") != "File",
        has_gpus=instance is not None and bool(instance.accelerators),
        has_larger_instance=instance is not None
        and single_instance_alternative(instance, counts) is not None,
        could_use_smddp=is_aws and kind in _OTHER_DATA_PARALLEL and name in SMDDP_TYPES,
        lacks_efa=is_aws and instance is not None and instance.efa is False,
    )


def _finding(shortage: MemoryShortage) -> str:
    if shortage.memory == "accelerator":
        return f"An accelerator ran out of memory: “{shortage.said}”."
    if shortage.memory == "main":
        return f"A node ran out of main memory: “{shortage.said}”."
    return (
        f"A process was killed by SIGKILL: “{shortage.said}”. The kernel kills processes this "
        "way when a node runs out of main memory; the log does not show whether that was the "
        "cause."
    )


def _ladder(report: ScalingReport, point: Point) -> Iterator[Advice]:
    """Yield the steps of the developer guide in order, except those that the job already takes."""
    training = _section(config_of_main(report), "training")
    hyperparameters = _section(training, "hyperparameters")
    kind = _section(training, "distribution").get("kind")
    batch = point.per_replica_batch_size
    if batch is None or batch > 1:
        known = "" if batch is None else f": it was {batch} per replica"
        yield Advice(
            "a smaller batch",
            f"Reduce the batch size{known}; keep reducing it until it fits (training.batch.size; "
            "training.batch.accumulate_grad_batches keeps the global batch)",
            GUIDE,
        )
    if "16" not in str(hyperparameters.get("precision", "")):
        yield Advice(
            "half precision", "Half precision (FP16), if the program computes in 32 bits", GUIDE
        )
    shorter = "Smaller inputs: a shorter sequence length for text, a lower resolution for images"
    yield Advice("smaller inputs", shorter, GUIDE)
    if (
        kind != "smp_v2"
        and hyperparameters.get("strategy") not in _SHARDING
        and point.planned.get("world_size", point.world_size) != 1
    ):
        yield Advice(
            "sharding",
            "Shard the model's states over the devices (FSDP, or SMP's sharded data "
            "parallelism: training.distribution.kind smp_v2)",
            GUIDE,
        )
    if kind not in ("smp_v1", "smp_v2"):
        condition = (
            "The batch size was already 1"
            if batch == 1
            else "If a batch size of 1 does not fit either"
        )
        text = f"{condition}: model parallelism (training.distribution.kind smp_v1 or smp_v2)"
        yield Advice("model parallelism", text, GUIDE)


def _main_memory(instance: InstanceType | None) -> Iterator[Advice]:
    """Yield advice about main memory, which the guide's steps for accelerators do not cover."""
    size = (
        f" ({instance.memory_gib:g} GiB)"
        if instance is not None and instance.memory_gib is not None
        else ""
    )
    yield Advice(
        "fewer data-loader processes or more main memory",
        f"The node's main memory{size} ran out, not an accelerator's: use fewer data-loader "
        "processes, each of which eventually holds a copy of the program's objects, or a type "
        "with more main memory",
        LOADER_DOC,
    )


def _larger_instance(report: ScalingReport) -> Iterator[Advice]:
    instance = _instance(report.conditions.instance_type)
    found = instance and single_instance_alternative(
        instance, [row.nodes for row in report.summary if row.n]
    )
    if instance is None or not found:
        return
    nodes, larger = found
    yield Advice(
        "a larger instance type",
        f"Choose a larger instance type before more nodes: {nodes} nodes of "
        f"{instance.instance_type} have as many accelerators as one {larger.instance_type}; on "
        "a single instance, performance is better and cost is lower, depending on the "
        "libraries. Not measured here",
        GUIDE,
    )


def _smddp(report: ScalingReport) -> Iterator[Advice]:
    if not setting_of(report).could_use_smddp:
        return
    last = max(report.summary, key=lambda row: row.nodes if row.train.efficiency is not None else 0)
    least = report.limits.get("min_efficiency", _LEAST_EFFICIENCY)
    waits = [
        point.data_wait_share for point in report.points if point.used and point.nodes == last.nodes
    ]
    waiting = any(share is not None and share > DATA_WAIT_LIMIT for share in waits)
    if (
        last.nodes == 1
        or last.train.efficiency is None
        or last.train.efficiency >= least
        or waiting
    ):
        return
    yield Advice(
        "SMDDP",
        "SMDDP may be worth a sweep (training.distribution.kind smddp): at "
        f"{nodes_text(last.nodes)} efficiency is {format_percent(last.train.efficiency)}, below "
        f"{format_percent(least)}, no run there reported waiting for data for more than "
        f"{format_percent(DATA_WAIT_LIMIT)} of its time, and {report.conditions.instance_type} "
        "supports SMDDP. For larger clusters, AWS reports 20 to 40% more throughput than with "
        "PyTorch DDP or Horovod. Not measured here; it needs a container that includes SMDDP "
        "(docs/distribution.md)",
        BLOG,
    )


_LEAST_EFFICIENCY = RecommendationConfig().min_efficiency


def _instance(name: str | None) -> InstanceType | None:
    try:
        return load_catalogue().get(name) if name is not None else None
    except UnknownInstanceType:
        return None


def _section(parent: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    found = (parent or {}).get(name)
    return found if isinstance(found, Mapping) else {}
