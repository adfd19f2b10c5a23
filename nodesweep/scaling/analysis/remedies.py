"""Changes to a job that scales poorly, with the predicted saving of each.

REMEDIES holds one row per change. If the parts of T (step_budget.py) allow a prediction, the row
has a function for the share of T that a run would save: `expected` if the assumption of the row
holds, and `most`, the largest possible saving. If the change leaves the share f(N) of T(N), the
efficiency E(N) becomes E(N) f(N0) / f(N), since the change also applies to the baseline. f(N) is
limited to at least E(N) f(N0), since only other effects, such as caching, could raise the
efficiency above 1.

Side effects are not predicted: a larger batch may compute faster but need more samples for the same
loss, and compressing gradients takes time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import Field

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.intervals import geometric_mean
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.analysis.step_budget import (
    CAUSES,
    LEAST_POINTS,
    LEAST_POINTS_OF_SINGLE_RUNS,
    Cause,
    RunBudget,
    StepBudget,
    most_runs_slowest,
    run_budgets,
    welch_reach,
)
from nodesweep.scaling.report_part import Part

Name = Literal[
    "batch", "compression", "loader_workers", "slow_node", "ddp", "bucket_size", "static_graph",
    "bucket_view", "data_shards", "pin_memory", "larger_instance", "smddp", "efa",
]  # fmt: skip
DDP_DOC = "PyTorch documentation, DistributedDataParallel"
GUIDE = "Amazon SageMaker developer guide, Distributed training"
BLOG = "AWS blog, Run PyTorch Lightning and native PyTorch DDP on Amazon SageMaker Training"
LOADER_DOC = "PyTorch documentation, torch.utils.data"
_LEAST_LEFT = 0.01
"""Minimum share of T that is assumed to remain after a change."""


class Setting(NamedTuple):
    """The facts about a sweep that decide which changes are possible."""

    uses_ddp: bool = True
    """True unless the config shows a different kind of parallelism."""
    compresses: bool = False
    """True if the shipped program already sends 16-bit gradients."""
    uses_fsdp: bool = False
    copies_data: bool = False
    """True if every node reads the whole dataset while it trains."""
    has_gpus: bool = False
    has_larger_instance: bool = False
    could_use_smddp: bool = False
    lacks_efa: bool = False


class Saving(NamedTuple):
    """The shares of T that a change saves if its assumption holds, and at most."""

    expected: float
    most: float


class Remedy(NamedTuple):
    """A change, the part of T that it shortens, when it is possible, and the predicted saving."""

    name: Name
    change: str
    """The change in words, with {node} as the placeholder for the slowest node."""
    cause: Cause
    source: str
    is_possible: Callable[[Setting], bool]
    assumes: str | None = None
    saving: Callable[[RunBudget], Saving] | None = None
    unmeasured: str | None = None
    """The unmeasured quantity that a prediction would need; None if the saving is predicted."""


def _double_batch(run: RunBudget) -> Saving:
    """Save half of the communication and the optimizer and, at most, half of the waiting.

    These happen once per optimizer step.
    """
    per_step = (run.shares["communication"] + run.shares["optimizer"]) / 2
    return Saving(per_step, per_step + run.shares.get("waiting", 0.0) / 2)


def _halve_bytes(run: RunBudget) -> Saving:
    """Save half of the exposed communication and, at most, all of it.

    If the communication C is halved, of which e = C - h is exposed, then max(0, C/2 - h) is left.
    This saves at least e/2, and all of it if h is C/2 or more. C is not measured.
    """
    exposed = run.shares["communication"]
    return Saving(exposed / 2, exposed)


def _without_gathering(run: RunBudget) -> Saving:
    """Save a third of the exposed communication and, at most, all of it.

    DDP transfers twice the size of the model per step, FSDP three times.
    """
    exposed = run.shares["communication"]
    return Saving(exposed / 3, exposed)


def _double_workers(run: RunBudget) -> Saving:
    """Save the part of the data wait in which the CPU is idle, up to half of T.

    A loader that the training waits for is busy during all of T, so twice as many workers are busy
    for half of T. CPU time beyond the computation is attributed to the loader. More processes do
    not shorten it, unless they do this work while the node communicates.

    The cost of more processes is unknown. On nodes with a single, mostly busy core of 0.2 vCPUs,
    they saved nothing instead of the predicted 11% (benchmarks/results/remedies-2026-11-27.json).
    """
    waited = run.shares["data"]
    if run.cpu_used is None:
        return Saving(min(waited, 0.5), waited)
    computed = sum(run.shares[name] for name in CAUSES["compute"])
    worked = max(0.0, run.cpu_used - computed)
    return Saving(max(0.0, min(waited - worked, 0.5)), max(0.0, min(waited, 1 - run.cpu_used)))


def _replace_slowest(run: RunBudget) -> Saving:
    """Save the time that the slowest node costs and, at most, all waiting."""
    if run.slowest_node is None:
        return Saving(0.0, 0.0)
    return Saving(run.lead, run.shares.get("waiting", run.lead))


def _with_ddp(setting: Setting) -> bool:
    return setting.uses_ddp


REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        name="batch",
        change="Twice the batch per process, or gradients accumulated over two batches (no_sync)",
        cause="communication",
        source="Li et al. 2020, PyTorch Distributed, arXiv 2006.15704",
        is_possible=lambda setting: True,
        assumes=(
            "half as many optimizer steps, each with the same communication time, and the same "
            "compute time per sample. The global batch doubles, so the same loss may take more "
            "samples"
        ),
        saving=_double_batch,
    ),
    Remedy(
        name="compression",
        change="16-bit gradients: DDP's bf16_compress_hook, or fp16_compress_hook with gloo",
        cause="communication",
        source="PyTorch documentation, DDP Communication Hooks",
        is_possible=lambda setting: setting.uses_ddp and not setting.compresses,
        assumes="that gradients are 32-bit, and communication time is proportional to the bytes",
        saving=_halve_bytes,
    ),
    Remedy(
        name="loader_workers",
        change="Twice the num_workers of the DataLoader, or 2 instead of none",
        cause="data",
        source=LOADER_DOC,
        is_possible=lambda setting: True,
        assumes="idle cores on the nodes, and storage that keeps up",
        saving=_double_workers,
    ),
    Remedy(
        name="slow_node",
        change="A different node instead of {node}, or less work for it",
        cause="waiting",
        source="Chen et al. 2016, Revisiting Distributed Synchronous SGD, arXiv 1604.00981",
        is_possible=lambda setting: True,
        assumes="that the node becomes as fast as the others on average, and varies as before",
        saving=_replace_slowest,
    ),
    Remedy(
        name="ddp",
        change="DDP instead of FSDP",
        cause="communication",
        source="Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, section 7",
        is_possible=lambda setting: setting.uses_fsdp,
        assumes=(
            "that the model fits in each process, and communication time is proportional to the "
            "bytes"
        ),
        saving=_without_gathering,
    ),
    Remedy(
        name="bucket_size",
        change="A different bucket_cap_mb for DDP",
        cause="communication",
        source="Li et al. 2020, PyTorch Distributed, arXiv 2006.15704",
        is_possible=_with_ddp,
        unmeasured="the time of each bucket's all-reduce",
    ),
    Remedy(
        name="static_graph",
        change="DDP's static_graph=True instead of find_unused_parameters=True",
        cause="compute",
        source=DDP_DOC,
        is_possible=_with_ddp,
        unmeasured="the time of the search for unused parameters",
    ),
    Remedy(
        name="bucket_view",
        change="DDP's gradient_as_bucket_view=True",
        cause="compute",
        source=DDP_DOC,
        is_possible=_with_ddp,
        unmeasured="the time to copy gradients into buckets",
    ),
    Remedy(
        name="data_shards",
        change="A share of the data per node (dataset.distribution: ShardedByS3Key)",
        cause="data",
        source="Amazon SageMaker API reference, S3DataSource",
        is_possible=lambda setting: setting.copies_data,
        unmeasured="the time that each node spends reading",
    ),
    Remedy(
        name="pin_memory",
        change="pin_memory=True for the DataLoader",
        cause="data",
        source="PyTorch Performance Tuning Guide",
        is_possible=lambda setting: setting.has_gpus,
        unmeasured="the time of copies to the GPU",
    ),
    Remedy(
        name="larger_instance",
        change="A larger instance type instead of more nodes (sweep.instance_types)",
        cause="communication",
        source=GUIDE,
        is_possible=lambda setting: setting.has_larger_instance,
        unmeasured="communication within the larger type",
    ),
    Remedy(
        name="smddp",
        change="SMDDP (training.distribution.kind smddp)",
        cause="communication",
        source=BLOG,
        is_possible=lambda setting: setting.could_use_smddp,
        unmeasured="the time of SMDDP's all-reduce",
    ),
    Remedy(
        name="efa",
        change="An instance type with EFA",
        cause="communication",
        source="Amazon EC2 user guide, Elastic Fabric Adapter",
        is_possible=lambda setting: setting.lacks_efa,
        unmeasured="communication over EFA",
    ),
)


class Prediction(Part):
    """The prediction for one node count, if the change is also applied to the baseline."""

    nodes: int = Field(description="N, nodes per job.")
    seconds: float = Field(description="T(N) with the change.")
    efficiency: float = Field(description="E(N) with the change at both N and N0.")
    interval: Interval | None = Field(
        description=(
            "Interval of the efficiency, widened by the 95% interval from the repeats. The lower "
            "bound assumes the expected saving at N and the largest possible one at N0, the upper "
            "bound the reverse. Null at N0, and for fewer than 3 runs at N or N0."
        )
    )


class PredictedRemedy(Part):
    """One change and its predicted saving."""

    name: Name = Field(description="Name of the change.")
    change: str = Field(description="The change in words.")
    cause: Cause = Field(description="Part of the time that the change shortens.")
    source: str = Field(description="Document that describes the change.")
    saved: float | None = Field(
        description="Share of T that the change saves at the node count `nodes` of `remedies`, 0 "
        "to 1; null if not predicted."
    )
    predictions: tuple[Prediction, ...] = Field(
        description="Predictions by node count, ascending; empty if not predicted."
    )
    assumes: str | None = Field(description="Assumptions of the prediction; null if not predicted.")
    unmeasured: str | None = Field(
        description="Quantity that would have to be measured for a prediction; null if predicted."
    )


class Remedies(Part):
    """Changes that would help, the largest predicted saving first and unpredicted changes last."""

    nodes: int = Field(
        description=(
            "Node count for which the changes are ranked: the recommended one, or the largest if "
            "none or N0 is recommended, or if no saving at the recommended one is above the noise."
        )
    )
    ranked: tuple[PredictedRemedy, ...] = Field(
        description=(
            "Changes that save at least 2% of T with an interval above 0, or at least 5% without "
            "an interval, at `nodes` or a larger node count, followed by unpredicted changes that "
            "address a named cause of a loss up to `nodes`."
        )
    )


def find_remedies(
    rows: Sequence[SummaryRow],
    runs: Sequence[Run],
    budget: StepBudget,
    setting: Setting,
    chosen: int | None,
) -> Remedies | None:
    """Return the changes that would help, or None if the parts of the baseline time are unknown.

    Args:
        rows: The summary rows.
        runs: All attempts.
        budget: The parts of the train time by node count.
        setting: The facts about the sweep.
        chosen: The recommended node count, or None if no node count is recommended.
    """
    known = run_budgets(runs)
    baseline = next((row.nodes for row in rows if row.train.efficiency is not None), None)
    counts = [
        _Count(row.nodes, row.train.seconds, row.train.efficiency, _agreed(known[row.nodes]))
        for row in rows
        if row.train.seconds is not None
        and row.train.efficiency is not None
        and row.nodes in known
        and "starved" not in row.flags
    ]
    if not counts or counts[0].nodes != baseline:
        return None
    is_compared = "waiting" in counts[0].runs[0].shares
    slowest = {most_runs_slowest(count.runs) for count in counts} - {None}
    node = slowest.pop() if len(slowest) == 1 else "the slowest node"
    possible = [
        _comparable(remedy, is_compared)._replace(change=remedy.change.format(node=node))
        for remedy in REMEDIES
        if remedy.is_possible(setting)
    ]
    found = [
        _predicted(remedy, remedy.saving, counts)
        for remedy in possible
        if remedy.saving is not None
    ]
    at = counts[-1]
    for count in counts[1:]:
        if count.nodes == chosen and any(count.nodes in each.shown_at for each in found):
            at = count
    named = {
        cause.cause
        for loss in budget.losses
        for cause in loss.causes
        if cause.named and loss.to_nodes <= at.nodes
    }
    others = [
        _shown(remedy) for remedy in possible if remedy.saving is None and remedy.cause in named
    ]
    predicted = [
        _shown(each.remedy, each.saved[at.nodes], each.predictions)
        for each in sorted(found, key=lambda each: -each.saved[at.nodes])
        if max(each.shown_at, default=0) >= at.nodes
    ]
    return Remedies(nodes=at.nodes, ranked=(*predicted, *others))


class _Count(NamedTuple):
    nodes: int
    seconds: float
    efficiency: float
    runs: Sequence[RunBudget]


class _Predicted(NamedTuple):
    remedy: Remedy
    saved: dict[int, float]
    """Predicted saving by node count, as a share of T(N)."""
    shown_at: set[int]
    """Node counts at which the saving is above the noise."""
    predictions: list[Prediction]


class _Left(NamedTuple):
    """The share of T that remains after a change at a node count."""

    by_run: Sequence[float]
    """The share of the time of each run that remains if the assumption of the change holds."""
    expected: float
    """The geometric mean of `by_run`."""
    least: float
    """The geometric mean of the shares that remain after the largest possible saving."""

    def log_times(self, runs: Sequence[RunBudget]) -> list[float]:
        """Return the logarithm of the predicted time of each run with the change."""
        return [math.log(run.seconds * share) for run, share in zip(runs, self.by_run, strict=True)]


def _agreed(runs: Sequence[RunBudget]) -> Sequence[RunBudget]:
    """Return the runs, but drop their slowest nodes unless most runs agree on one."""
    if most_runs_slowest(runs) is not None:
        return runs
    return [run._replace(slowest_node=None) for run in runs]


def _comparable(remedy: Remedy, is_compared: bool) -> Remedy:
    """Return the change, without its prediction if the communication time includes waiting.

    `is_compared` is True if the processes could be compared, so waiting is a separate part.
    """
    if is_compared or remedy.cause != "communication" or remedy.saving is None:
        return remedy
    why = "the communication of every process's steps, without waiting"
    return remedy._replace(saving=None, assumes=None, unmeasured=why)


def _predicted(
    remedy: Remedy, saving: Callable[[RunBudget], Saving], counts: Sequence[_Count]
) -> _Predicted:
    lefts = {count.nodes: _left(saving, count.runs) for count in counts}
    base = lefts[counts[0].nodes]
    found = _Predicted(remedy, {}, set(), [])
    for count in counts:
        left = lefts[count.nodes]
        share = _bounded(left.expected, count, base)
        found.saved[count.nodes] = 1 - share
        if 1 - share >= LEAST_POINTS and _is_above_noise(left):
            found.shown_at.add(count.nodes)
        interval = None
        reach = welch_reach(left.log_times(count.runs), base.log_times(counts[0].runs))
        if reach is not None and count is not counts[0]:
            low = count.efficiency * base.least / share
            high = count.efficiency * base.expected / _bounded(left.least, count, base)
            interval = Interval(low=low * math.exp(-reach), high=high * math.exp(reach))
        found.predictions.append(
            Prediction(
                nodes=count.nodes,
                seconds=count.seconds * share,
                efficiency=count.efficiency * base.expected / share,
                interval=interval,
            )
        )
    return found


def _left(saving: Callable[[RunBudget], Saving], runs: Sequence[RunBudget]) -> _Left:
    savings = [saving(run) for run in runs]
    by_run = [max(_LEAST_LEFT, 1 - each.expected) for each in savings]
    least = [max(_LEAST_LEFT, 1 - each.most) for each in savings]
    return _Left(by_run, geometric_mean(by_run), geometric_mean(least))


def _bounded(left: float, count: _Count, base: _Left) -> float:
    """Return the share of T(N) that remains, but at least the share for which E(N) is 1."""
    return max(left, min(1.0, count.efficiency * base.expected))


def _is_above_noise(left: _Left) -> bool:
    """Return True if the interval of the saving is above 0 or, without one, the saving is large."""
    logs = [math.log(share) for share in left.by_run]
    reach = welch_reach(logs, [0.0] * len(logs))
    if reach is None:
        return 1 - left.expected >= LEAST_POINTS_OF_SINGLE_RUNS
    return fmean(logs) + reach < 0


def _shown(
    remedy: Remedy, saved: float | None = None, predictions: Sequence[Prediction] = ()
) -> PredictedRemedy:
    return PredictedRemedy(
        name=remedy.name,
        change=remedy.change,
        cause=remedy.cause,
        source=remedy.source,
        saved=saved,
        predictions=tuple(predictions),
        assumes=remedy.assumes,
        unmeasured=remedy.unmeasured,
    )
