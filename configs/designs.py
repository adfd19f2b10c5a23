"""The sweep designs by name, as far as the config alone determines them.

Config validation needs this table, so it is part of the configs package. The rest of each design,
such as which jobs come next, is in its file in nodesweep/scaling/design/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.configs.sweep import SweepConfig

DesignName = Literal["full", "sequential", "probe", "predict"]
DEFAULT_REPEATS = 3
DEFAULT_MAX_REPEATS = 5
FURTHEST_PREDICTED = 4
"""Largest multiple of the measured node counts that is predicted."""
MODEL_PARALLEL_DEGREES = (
    "partitions", "tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree",
)  # fmt: skip
"""Options of training.distribution that, if above 1, make ranks exchange more than gradients."""
_MOST_TIMED = 16
"""Maximum number of smaller batches that a job times, as a variable has at most 512 characters."""


class DesignRules:
    """A design's requirements on a config, and the maximum number of jobs that it runs.

    The defaults describe a design that runs each node count `repeats` times.
    """

    text = ""
    """The design's part of the description of sweep.design."""
    decides_as_it_goes = False
    """True if earlier results determine the next jobs and their number."""
    repeats_as_needed = False
    """True if each node count is repeated independently, not in passes over all node counts."""
    ends_jobs_early = False
    """True if jobs other than validation runs can finish early."""
    validates = False
    """True if full-length validation runs follow the jobs that finish early."""
    default_share: float | None = None
    """Share of its steps that a job runs unless sweep.probe sets one; None if there is no limit."""
    predicts = False
    """True if the design predicts node counts that it does not measure."""

    def measured_counts(self, sweep: SweepConfig) -> tuple[int, ...]:
        """Return the node counts to measure, without sweep.confirm."""
        return sweep.node_counts

    def arm_repeats(self, sweep: SweepConfig) -> int:
        """Return the maximum number of jobs per arm and node count, excluding validation runs."""
        return sweep.repeats

    def max_checks(self, sweep: SweepConfig) -> int:
        """Return the maximum number of validation runs: full-length jobs after all others."""
        return 0

    def misplaced(self, sweep: SweepConfig) -> str | None:
        """Return why a sweep of a different design must not set this design's fields, or None."""
        return None

    def sweep_problem(self, sweep: SweepConfig) -> str | None:
        """Return the conflict between the section and its design, or None."""
        return None

    def unsuited(self, config: BenchmarkConfig) -> str | None:
        """Return why a benchmark of any design could not switch to this one, or None."""
        return None

    def problem(self, config: BenchmarkConfig) -> str | None:
        """Return the conflict between a benchmark and this design, which it uses, or None."""
        return self.unsuited(config)

    def ends_early(self, config: BenchmarkConfig) -> bool:
        """Return True if a benchmark's jobs finish early under this design."""
        return self.ends_jobs_early

    def ends_raw_early(self, raw: Mapping[str, Any], ships_program: bool) -> bool:
        """Return ends_early() for a config before validation, ignoring its amount of work."""
        return self.ends_jobs_early

    def batches_to_time(self, config: BenchmarkConfig) -> tuple[int, ...]:
        """Return the batches whose passes jobs on one node time after the training, descending.

        The first one is the job's own batch. Empty if the jobs time no passes.
        """
        return ()

    def as_before(self, config: BenchmarkConfig) -> tuple[BenchmarkConfig, str] | None:
        """Return the config's equivalent in earlier versions, and how to get that behavior now.

        None if the config has always had the same meaning.
        """
        return None

    def with_repeat(self, sweep: SweepConfig, repeat: int) -> SweepConfig:
        """Return the section as it was when the sweep ran a job of this repeat.

        A resume may have raised the number of repeats without changing the sweep's record.
        """
        return sweep

    def identify(self, asked: dict[str, Any], config: BenchmarkConfig) -> None:
        """Adjust in place the fields of the section that determine a sweep's id."""
        asked.pop("probe", None)
        if self.ends_early(config):
            asked["probe"] = config.sweep.probe_ends.model_dump(mode="json")


def _spot_problem(config: BenchmarkConfig, design: DesignName, aim: str) -> str | None:
    if config.training.spot is None:
        return None
    return (
        "training.spot is set, but runs on spot capacity never count toward the headline, so"
        f" sweep.design: {design} would have no runs to {aim}; remove training.spot, or set"
        " sweep.design: full"
    )


def _repeats_nothing(sweep: SweepConfig) -> str | None:
    if sweep.confirm_repeats == 1:
        return None
    return (
        f"confirm_repeats is {sweep.confirm_repeats}, but confirm is null; set confirm, or remove"
        " confirm_repeats"
    )


def _value(raw: Any, *path: str) -> Any:
    """Return a value of a config before validation, or None if it is missing."""
    for name in path:
        raw = raw.get(name) if isinstance(raw, dict) else None
    return raw


class _Full(DesignRules):
    text = "`repeats` jobs at every node count"

    def identify(self, asked: dict[str, Any], config: BenchmarkConfig) -> None:
        del asked["design"]  # keeps the ids of sweeps from before there were other designs


class _Sequential(DesignRules):
    text = (
        "one job at every node count, then only the repeats needed to decide the limits of"
        " report.recommendation, with an error rate of at most 5% per sweep (docs/sequential.md)"
    )
    decides_as_it_goes = True
    repeats_as_needed = True

    def arm_repeats(self, sweep: SweepConfig) -> int:
        return sweep.max_repeats

    def with_repeat(self, sweep: SweepConfig, repeat: int) -> SweepConfig:
        most = max(sweep.max_repeats, repeat)
        return sweep.model_copy(update={"max_repeats": most})

    def misplaced(self, sweep: SweepConfig) -> str | None:
        if sweep.max_repeats == DEFAULT_MAX_REPEATS:
            return None
        return (
            f"max_repeats is {sweep.max_repeats}, but only design: sequential uses it; replace it"
            " with repeats, or set design: sequential"
        )

    def sweep_problem(self, sweep: SweepConfig) -> str | None:
        if sweep.repeats != DEFAULT_REPEATS:
            return (
                f"repeats is {sweep.repeats}, but design: sequential decides the number itself;"
                " replace it with max_repeats, or set design: full"
            )
        if len(sweep.node_counts) < 2:
            return (
                f"node_counts is {list(sweep.node_counts)}, but design: sequential compares node"
                " counts; give two or more, or set design: full"
            )
        if sweep.arm_count > 1:
            arm = sweep.arm_kind.split()[-1]
            return (
                f"{sweep.arms_field} is {list(sweep.arm_names)}, but design: sequential decides "
                f"between the node counts of one {arm}; set design: probe, which drops node "
                f"counts that another {arm} beats, or design: full"
            )
        return None

    def unsuited(self, config: BenchmarkConfig) -> str | None:
        goals = config.report.recommendation
        for name in ("deadline_seconds", "budget_usd_per_run", "hour_value_usd"):
            if getattr(goals, name) is not None:
                return (
                    f"report.recommendation.{name} is {getattr(goals, name)}, but sweep.design:"
                    " sequential decides by efficiency and doubling ratio alone; remove it, or"
                    " set sweep.design: full"
                )
        return _spot_problem(config, "sequential", "decide by")


class _Probe(DesignRules):
    text = (
        "short jobs whose times are projected, then a full validation run at the recommended"
        " count and at the one whose rejection decides (docs/probe.md)"
    )
    decides_as_it_goes = True
    ends_jobs_early = True
    validates = True

    def max_checks(self, sweep: SweepConfig) -> int:
        return 1 if sweep.arm_count > 1 else min(2, len(sweep.node_counts))

    def misplaced(self, sweep: SweepConfig) -> str | None:
        if sweep.probe is None or sweep.rules.ends_jobs_early:
            return None
        return (
            f"probe is set, but design is {sweep.design}; set design: probe or predict, or remove"
            " it"
        )

    def unsuited(self, config: BenchmarkConfig) -> str | None:
        if problem := _spot_problem(config, "probe", "project from"):
            return problem
        if config.report.parity.target_metric is not None:
            return (
                f"report.parity.target_metric is {config.report.parity.target_metric}, but"
                " sweep.design: probe ends jobs long before they reach it; remove it, or set"
                " sweep.design: full"
            )
        return None

    def problem(self, config: BenchmarkConfig) -> str | None:
        if problem := self.unsuited(config):
            return problem
        if config.training.amount is not None:
            field, value = config.training.amount
            return (
                f"training.{field} is {value}, which"
                " sets the steps of a full run, but sweep.design: probe ends jobs long before;"
                " remove it, or set sweep.design: full"
            )
        return None


class _Predict(DesignRules):
    text = (
        "two or more jobs at each of the smallest node counts, short where possible, from which"
        " the others are predicted (docs/fits.md)"
    )
    decides_as_it_goes = True
    ends_jobs_early = True
    predicts = True
    default_share = 0.1

    def arm_repeats(self, sweep: SweepConfig) -> int:
        return max(2, sweep.repeats)  # one run gives no estimate of the noise

    def measured_counts(self, sweep: SweepConfig) -> tuple[int, ...]:
        counts = sweep.node_counts
        least = -(-counts[-1] // FURTHEST_PREDICTED)
        return counts[: max(2, 1 + sum(nodes < least for nodes in counts))]

    def misplaced(self, sweep: SweepConfig) -> str | None:
        if sweep.confirm is None:
            return _repeats_nothing(sweep)
        return (
            f"confirm is {sweep.confirm}, but design: {sweep.design} predicts nothing; set"
            " design: predict, or remove it"
        )

    def sweep_problem(self, sweep: SweepConfig) -> str | None:
        measured = list(self.measured_counts(sweep))
        predicted = [nodes for nodes in sweep.node_counts if nodes not in measured]
        if not predicted:
            return (
                f"node_counts is {list(sweep.node_counts)}, but design: predict needs at least"
                " two counts to measure and larger ones to predict, up to"
                f" {FURTHEST_PREDICTED}x the largest measured one; add larger counts, or set"
                " design: full"
            )
        if sweep.variants is not None:
            return (
                f"variants is {list(sweep.arm_names)}, but design: predict supports only"
                " instance_types; set design: probe or full, or remove it"
            )
        if sweep.confirm is not None and sweep.instance_types is not None:
            return (
                f"confirm is {sweep.confirm}, but instance_types is {list(sweep.arm_names)}; to"
                " confirm a prediction, use a sweep of its type alone, without instance_types"
            )
        if sweep.confirm is not None and sweep.confirm not in predicted:
            return f"confirm is {sweep.confirm}; use a node count that is predicted: {predicted}"
        if sweep.confirm_repeats > (most := self.arm_repeats(sweep)):
            return (
                f"confirm_repeats is {sweep.confirm_repeats}; allowed: 1 to {most}, the jobs at"
                " each measured node count; raise repeats, or lower it"
            )
        return _repeats_nothing(sweep) if sweep.confirm is None else None

    def ends_early(self, config: BenchmarkConfig) -> bool:
        """Return True if the shipped program runs and no full-length runs are needed.

        They are needed if training.steps or baseline_seconds sets the number of steps or, unless
        sweep.probe decides, if the global batch grows, since their final metrics show convergence.
        """
        if not config.ships_program or config.training.amount is not None:
            return False
        if config.sweep.probe is not None:
            return config.sweep.probe.max_share != 1
        batch = config.training.batch
        return batch is not None and batch.policy == "fixed_global"

    def batches_to_time(self, config: BenchmarkConfig) -> tuple[int, ...]:
        """Return the batch of one node and those of a process at each larger node count.

        Only the shipped program times passes, in the only process of a node.
        """
        training, sweep = config.training, config.sweep
        batch, processes = training.batch, getattr(training.distribution, "processes_per_node", 1)
        if (
            not config.ships_program
            or batch is None
            or batch.policy != "fixed_global"
            or (batch.accumulate_grad_batches, processes or 1) != (1, 1)
            or 1 not in self.measured_counts(sweep)
        ):
            return ()
        sizes = {batch.size // nodes for nodes in sweep.node_counts if batch.size % nodes == 0}
        own, *smaller = sorted(sizes, reverse=True)
        return (own, *smaller[-_MOST_TIMED:]) if smaller else ()

    def ends_raw_early(self, raw: Mapping[str, Any], ships_program: bool) -> bool:
        ends = _value(raw, "sweep", "probe")
        if ends is not None:
            return ships_program and _value(raw, "sweep", "probe", "max_share") != 1
        return ships_program and _value(raw, "training", "batch", "policy") == "fixed_global"

    def as_before(self, config: BenchmarkConfig) -> tuple[BenchmarkConfig, str] | None:
        if not self.ends_early(config):
            return None
        whole = config.sweep.probe_ends.model_copy(update={"max_share": 1.0})
        sweep = config.sweep.model_copy(update={"probe": whole})
        return (
            config.model_copy(update={"sweep": sweep}),
            "if the sweep is from before predict had short runs, add `--set"
            " sweep.probe.max_share=1`",
        )

    def problem(self, config: BenchmarkConfig) -> str | None:
        ends = config.sweep.probe
        if ends is not None and ends.max_share != 1 and not self.ends_early(config):
            amount = config.training.amount
            why = (
                "the training script is not the shipped one, so its jobs run all their steps"
                if amount is None
                else f"training.{amount[0]} is {amount[1]}, and its jobs run that many steps"
            )
            return f"sweep.probe is set for design: predict, but {why}; remove sweep.probe"
        return self.unsuited(config)

    def unsuited(self, config: BenchmarkConfig) -> str | None:
        training = config.training
        if problem := _spot_problem(config, "predict", "predict from"):
            return problem
        if config.report.parity.target_metric is not None:
            return (
                f"report.parity.target_metric is {config.report.parity.target_metric}, but"
                " sweep.design: predict cannot predict when a larger batch reaches it; remove"
                " it, or set sweep.design: full"
            )
        for name in MODEL_PARALLEL_DEGREES:
            if (getattr(training.distribution, name, None) or 1) > 1:
                return (
                    f"training.distribution.{name} is {getattr(training.distribution, name)}, but"
                    " sweep.design: predict supports data parallelism only; set sweep.design: full"
                )
        if training.measure != "auto" and training.source_dir is not None:
            return (
                f"training.measure is {training.measure}, but sweep.design: predict requires"
                " nodesweep's own measurement; set it to auto, or set sweep.design: full"
            )
        # imported here so that code that needs only a design's name loads quickly
        from nodesweep.configs.catalogue import UnknownInstanceType

        for name in config.instance_types:
            try:
                instance = config.node_type(name)
            except UnknownInstanceType:
                continue  # preflight refuses it
            if instance.accelerators:
                several = config.sweep.instance_types is not None
                return (
                    f"{'sweep.instance_types has' if several else 'training.instance_type is'}"
                    f" {name}, which has accelerators, but"
                    " sweep.design: predict supports CPU nodes only; set sweep.design:"
                    f" probe{'' if several else ', sequential'} or full"
                )
        return None


RULES: Mapping[DesignName, DesignRules] = {
    "full": _Full(),
    "sequential": _Sequential(),
    "probe": _Probe(),
    "predict": _Predict(),
}
