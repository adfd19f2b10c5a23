"""Hints on learning with larger batches, and on larger instances instead of more of them.

For larger batches B, McCandlish et al. 2018 (arXiv 1812.06162) model the number of samples to the
same loss as proportional to 1 + B/B_crit, with a critical batch B_crit that differs between tasks
by orders of magnitude. Shallue et al. 2019 (arXiv 1811.03600) find no batch size up to which all of
their workloads scale. A batch grown from B0 to B therefore needs 1 to B/B0 times as many samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.rules.rule import Facts, advises

_OPTIMISER_NAMES = frozenset({"optimizer", "optimiser", "optim"})
BATCH_NORM_SAMPLES = 16
"""Minimum number of samples per replica with which batch normalization works well.

ResNet-50 on ImageNet, error by batch per GPU (Wu & He 2018, arXiv 1803.08494, table 2): 32: 23.6%,
16: 23.7%, 8: 24.8%, 4: 27.3%, 2: 34.7%. Below 16 the error grows.
"""


LINEAR_BATCH = 8192
"""Largest batch size up to which the linear rule has been shown to preserve accuracy.

ResNet-50 on ImageNet with SGD and warm-up (Goyal et al. 2017, arXiv 1706.02677).
"""


def growth_text(base: int, largest: int, optimiser: str = "") -> str:
    """Describe what is known about growing the global batch from `base` to `largest` samples."""
    growth = largest / base
    times = f"{growth:,.0f}" if growth >= 10 else f"{growth:.3g}"
    text = (
        f"The global batch grows by a factor of {times}, from {base:,} to {largest:,} samples: "
        f"reaching the same loss takes 1 to {times} times as many samples, depending on the task's "
        "critical batch size (McCandlish et al. 2018, Shallue et al. 2019)"
    )
    if optimiser.startswith("adam"):
        return (
            f"{text}; for Adam, the learning rate scales with the square root of the batch size"
            " (Malladi et al. 2022)"
        )
    reach = "within" if largest <= LINEAR_BATCH else "beyond"
    return (
        f"{text}; {largest:,} is {reach} the {LINEAR_BATCH:,} samples up to which SGD with a "
        "linearly scaled rate and warm-up is known to keep its accuracy (ResNet-50, Goyal et al. "
        "2017)"
    )


@advises
def batch_growth_is_known(facts: Facts) -> list[str]:
    """Warn if the batch grows without a learning rate rule, or beyond the studied sizes."""
    sizes = {point.nodes: point.global_batch_size or 0 for point in facts.plan.points}
    base, largest = sizes[min(sizes)], sizes[max(sizes)]
    optimiser, has_rate = _optimiser(facts), facts.training.learning_rate is not None
    is_beyond = largest > LINEAR_BATCH and not optimiser.startswith("adam")
    if largest <= base or (has_rate and not is_beyond):
        return []
    known = growth_text(base, largest, optimiser)
    rate = "training.learning_rate is not set, so the program has to scale its rate"
    return [
        f"training.batch.policy: fixed_per_replica, so {known[0].lower()}{known[1:]}"
        f"{'' if has_rate else f'; {rate}'}"
    ]


def _optimiser(facts: Facts) -> str:
    """Return the name of the optimizer in lower case, or "" if no hyperparameter names it."""
    return next(
        (
            str(value).lower()
            for key, value in facts.training.hyperparameters.items()
            if key.lower() in _OPTIMISER_NAMES
        ),
        "",
    )


@advises
def rule_suits_the_optimizer(facts: Facts) -> list[str]:
    """Recommend the learning rate rule that suits the optimizer.

    SGD: linear (Goyal et al. 2017, arXiv 1706.02677); Adam: square root (Malladi et al. 2022, arXiv
    2205.10287). This applies only if the global batch grows: under fixed_global, every rule leaves
    the rate as it is.
    """
    training = facts.training
    if training.batch is None or training.learning_rate is None:
        return []
    rule, grows = training.learning_rate.rule, len(facts.node_counts) > 1
    if training.batch.policy == "fixed_global" or not grows:
        return []
    optimiser = _optimiser(facts)
    fitting = (
        "linear"
        if optimiser.startswith("sgd")
        else "sqrt"
        if optimiser.startswith("adam")
        else None
    )
    if fitting is None or rule == fitting:
        return []
    return [
        f"training.learning_rate.rule: {rule} with optimizer {optimiser}, but the global batch "
        f"grows with the nodes; use rule {fitting}, or the points may not reach the baseline's "
        "metric"
    ]


@advises
def batch_normalization_has_samples(facts: Facts) -> list[str]:
    """Warn about too few samples per replica for batch normalization's statistics.

    With a fixed global batch, each replica gets fewer samples as nodes are added.
    """
    batch = facts.training.batch
    sizes = {point.nodes: point.per_replica_batch_size or 0 for point in facts.plan.points}
    if batch is None or batch.policy != "fixed_global" or len(sizes) == 1:
        return []
    least, most = min(sizes), max(sizes)
    if not 0 < sizes[most] < BATCH_NORM_SAMPLES:
        return []
    return [
        f"training.batch.size: {batch.size} over the {most * facts.processes_per_node} ranks of "
        f"{most} nodes leaves {sizes[most]} samples per replica ({sizes[least]} on "
        f"{nodes_text(least)}); "
        f"batch normalization loses accuracy below {BATCH_NORM_SAMPLES}; if the model has it, "
        "use SyncBatchNorm or group normalization, a larger batch, or fewer nodes"
    ]


@advises
def larger_instance_first(facts: Facts) -> list[str]:
    """Recommend a larger instance, whose accelerators need no network between them.

    AWS recommends a larger instance before more instances.
    """
    found = single_instance_alternative(facts.instance, facts.node_counts)
    if found is None:
        return []
    nodes, row = found
    return [
        f"training.instance_type: {nodes} nodes of {facts.instance.instance_type} have "
        f"{nodes * (facts.instance.devices or 0)} accelerators. One {row.instance_type} has "
        f"{row.devices}, without a network between them; prefer the larger instance"
    ]


DATA_PARALLEL_BYTES = 20 * 10**9
"""Dataset size below which data parallelism may not pay off.

"We can clearly see benefits from data parallel strategies when an overall dataset size is at least
a few tens of GBs": AWS Machine Learning Blog, "Run PyTorch Lightning and native PyTorch DDP on
Amazon SageMaker Training, featuring Amazon Search", 2022.
"""


@advises
def dataset_is_large_enough(facts: Facts) -> Iterator[str]:
    """Warn about a dataset smaller than those for which AWS sees benefits of data parallelism."""
    size = facts.files.dataset_bytes
    if size is None or size >= DATA_PARALLEL_BYTES:
        return
    if facts.max_nodes > 1 and not facts.instance.emulated:
        shown = f"{size / 1e9:.2g} GB" if size >= 1e8 else "less than 0.1 GB"
        yield (
            f"dataset.source: {shown}, but AWS sees clear benefits of data parallelism from a few "
            "tens of GB on; unless a sample takes long to compute, measure 1 and 2 nodes first"
        )


def single_instance_alternative(
    instance: InstanceType, node_counts: Sequence[int]
) -> tuple[int, InstanceType] | None:
    """Return the largest node count that one larger instance could replace, and its type.

    The type is the smallest in the same family with as many accelerators. None if there is none.
    """
    devices = instance.devices
    if not devices:  # none, or an unknown number
        return None
    family = [row for row in load_catalogue().instances if row.family == instance.family]
    fitting = [
        (nodes, row)
        for nodes in node_counts
        if nodes > 1 and (row := _smallest_that_holds(nodes * devices, family))
    ]
    return fitting[-1] if fitting else None


def _smallest_that_holds(devices: int, rows: list[InstanceType]) -> InstanceType | None:
    holding = [row for row in rows if (row.devices or 0) >= devices]
    return min(
        holding,
        key=lambda row: (row.devices or 0, row.on_demand_usd_per_hour or math.inf),
        default=None,
    )
