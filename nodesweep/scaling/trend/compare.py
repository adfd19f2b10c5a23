"""Compare two reports to decide at which node counts the second sweep is slower than the first.

A is the reference (before), B the candidate (after). Each node count gets the ratio T(B)/T(A) of
the geometric mean train times, the interval of that ratio, a two-sided Mann-Whitney test, and a
verdict, which depends only on the interval. docs/compare.md says which sweeps are comparable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field

from nodesweep.configs.section import NOT_COMPARED, marked_fields
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling.analysis.intervals import (
    MIN_REPEATS,
    Interval,
    geometric_mean,
    ratio_interval,
)
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.analysis.per_result import expected
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import join_words, nodes_text
from nodesweep.scaling.instances.main_config import config_of_main
from nodesweep.scaling.outcome.outcome import TrainClock
from nodesweep.scaling.report.model import Conditions, PlatformFacts, ScalingReport
from nodesweep.scaling.report_part import Part

Verdict = Literal["regression", "improvement", "no difference", "not established"]
DEFAULT_TOLERANCE = 0.05
SIGNIFICANCE = 0.05
# The exact test enumerates all orders of the runs; with more runs per sweep than this, the normal
# approximation is as good.
MOST_RUNS_OF_THE_EXACT_TEST = 50
_SEED = 2026
_NOT_COMPARED = frozenset(marked_fields(TrainingConfig, NOT_COMPARED))
_OF_A_ROW = ("world_size", "global_batch_size", "per_replica_batch_size")
# Only used runs reveal these conditions, so a sweep without a used run does not differ in them.
_SIZE = "training.baseline_seconds"
_OF_USED_RUNS = frozenset({"launcher", "start", "train_clock", "device", _SIZE})
_MORE_CONDITIONS = ("isolation", "device", "code", "dataset.distribution", "training")


class ComparisonError(ValueError):
    """Two sweeps that cannot be compared; the message says why and what to do."""


class IncomparableError(ComparisonError):
    """Sweeps under different conditions; `differences` lists those not accepted by name."""

    def __init__(self, differences: Sequence[ConditionDifference]) -> None:
        self.differences = tuple(differences)
        lines = "\n".join(f"  - {difference.text}" for difference in differences)
        allowed = " ".join(f"--allow {difference.field}" for difference in differences)
        super().__init__(
            "the sweeps were measured under different conditions, so their times are not "
            f"comparable:\n{lines}\nIf a difference is what you want to measure, accept it by "
            f"name ({allowed}); --force accepts all differences and labels the result"
        )


class ConditionDifference(Part):
    """One condition that differs between A and B, or that is unknown in one of them."""

    field: str = Field(description="Name of the condition; training.* are config fields.")
    a: str | None = Field(description="Value of the condition in A; null: unknown.")
    b: str | None = Field(description="Value of the condition in B; null: unknown.")
    accepted: Literal["allowed", "forced"] | None = Field(
        default=None,
        description=(
            "allowed: accepted by name; forced: accepted by --force with all other differences; "
            "null: refused."
        ),
    )

    @property
    def text(self) -> str:
        """The condition and both values in one line, such as "region: A eu-west-1, B unknown"."""
        return f"{self.field}: A {_shown(self.a)}, B {_shown(self.b)}"


class ComparedSweep(Part):
    """One of the two sweeps that are compared."""

    sweep_id: str
    title: str = Field(description="Heading of the sweep's report.")
    generated_at: str = Field(description="ISO time of the sweep's report, UTC.")
    platform: PlatformFacts
    train_clock: TrainClock | None = Field(
        default=None,
        exclude_if=lambda clock: clock != "projected",
        description="projected if the train times are projected; absent: they are measured.",
    )

    @classmethod
    def of(cls, report: ScalingReport) -> Self:
        """Return the compared sweep that a report describes."""
        return cls(**{name: getattr(report, name) for name in cls.model_fields})


class ComparedRow(Part):
    """One node count compared on the train clock; an unknown value is null."""

    nodes: int = Field(description="N, nodes per job.")
    n_a: int = Field(description="Used runs in A.")
    n_b: int = Field(description="Used runs in B.")
    a_seconds: float | None = Field(description="Geometric mean T(N) in A.")
    b_seconds: float | None = Field(description="Geometric mean T(N) in B.")
    ratio: float | None = Field(description="T(B)/T(A); above 1, B is slower.")
    ratio_interval: Interval | None = Field(
        description="Interval of the ratio, with its level; null for fewer than 3 runs in A or B."
    )
    p_value: float | None = Field(
        description=(
            "Two-sided p-value of the Mann-Whitney test, with the null hypothesis that neither "
            "sweep tends to be slower."
        )
    )
    p_value_reason: str | None = Field(description="Why there is no p-value; null if there is one.")
    a_speedup: float | None = Field(description="S(N) in A.")
    b_speedup: float | None = Field(description="S(N) in B.")
    a_total_usd: float | None = Field(
        description="Mean cost of a run in A, including the warm pool kept after it."
    )
    b_total_usd: float | None = Field(
        description="Mean cost of a run in B, including the warm pool kept after it."
    )
    a_usd_per_result: float | None = Field(
        default=None,
        exclude_if=lambda usd: usd is None,
        description="Expected cost of a result in A; absent if unknown, or if no attempt failed.",
    )
    b_usd_per_result: float | None = Field(
        default=None,
        exclude_if=lambda usd: usd is None,
        description="Expected cost of a result in B; absent if unknown, or if no attempt failed.",
    )
    cost_ratio: float | None = Field(
        description="Cost in B over cost in A: per result if both are known, else of a run."
    )
    a_final_metric: FinalMetric | None = Field(description="Median final metric in A.")
    b_final_metric: FinalMetric | None = Field(description="Median final metric in B.")
    verdict: Verdict = Field(
        description=(
            "regression: the interval lies above 1 + tolerance; improvement: below 1/(1 +"
            " tolerance); no difference: it lies between these two limits; not established: the"
            " interval is unknown or contains a limit."
        )
    )
    reason: str = Field(description="The numbers behind the verdict.")


class Comparison(Part):
    """The result of comparing sweep B with sweep A."""

    schema_version: Literal[1] = 1
    a: ComparedSweep = Field(description="The reference, before.")
    b: ComparedSweep = Field(description="The candidate, after.")
    tolerance: float = Field(
        description=("Share by which B may be slower without being a regression.")
    )
    label: str | None = Field(
        description="Label of a forced comparison, shown in every rendering; null if not forced."
    )
    rows: tuple[ComparedRow, ...] = Field(
        description="One row per node count that both sweeps have, ascending."
    )
    regressions: tuple[int, ...] = Field(description="Node counts with an established regression.")
    lost: tuple[int, ...] = Field(
        description="Node counts at which A has a used run, but B has none."
    )
    only_in_a: tuple[int, ...] = Field(description="Node counts that only A has.")
    only_in_b: tuple[int, ...] = Field(description="Node counts that only B has.")
    differences: tuple[ConditionDifference, ...] = Field(
        description="Conditions that differ, which were accepted by name or by --force."
    )
    unknown_conditions: tuple[str, ...] = Field(
        description=("Conditions that are unknown for both sweeps.")
    )
    notes: tuple[str, ...] = Field(description=("Limitations that apply to this comparison."))


def compare(
    a: ScalingReport,
    b: ScalingReport,
    tolerance: float = DEFAULT_TOLERANCE,
    allowed: frozenset[str] = frozenset(),
    force: bool = False,
) -> Comparison:
    """Compare sweep B with sweep A.

    Args:
        a: Report of the reference.
        b: Report of the candidate.
        tolerance: Share by which B may be slower.
        allowed: Conditions that may differ.
        force: True to compare even if other conditions differ.

    Raises:
        IncomparableError: A condition that is not in `allowed` differs, and `force` is not set.
        ComparisonError: The sweeps share no node count, a name in `allowed` is not a condition, or
            the tolerance is not a share of at least 0.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ComparisonError(
            f"tolerance: got {tolerance}; expected a share of at least 0, e.g. 0.05 for 5%"
        )
    differences = _allowed(find_differences(a, b), allowed, force)
    in_a, in_b = ({row.nodes: row for row in report.summary} for report in (a, b))
    common = sorted(in_a.keys() & in_b.keys())
    if not common:
        raise ComparisonError(
            f"the sweeps have no node count in common: A has {join_words(in_a)}, B has "
            f"{join_words(in_b)}; measure them at the same node counts"
        )
    of_a, of_b = a.train_seconds_by_nodes(), b.train_seconds_by_nodes()
    rows = tuple(
        _compared(in_a[nodes], in_b[nodes], of_a.get(nodes, []), of_b.get(nodes, []), tolerance)
        for nodes in common
    )
    forced = [difference.field for difference in differences if difference.accepted == "forced"]
    return Comparison(
        a=ComparedSweep.of(a),
        b=ComparedSweep.of(b),
        tolerance=tolerance,
        label=(
            f"forced: {join_words(forced)} differ{'s' if len(forced) == 1 else ''}"
            if forced
            else None
        ),
        rows=rows,
        regressions=tuple(row.nodes for row in rows if row.verdict == "regression"),
        lost=tuple(
            nodes
            for nodes in sorted(in_a)
            if in_a[nodes].n and (nodes not in in_b or not in_b[nodes].n)
        ),
        only_in_a=tuple(sorted(in_a.keys() - in_b.keys())),
        only_in_b=tuple(sorted(in_b.keys() - in_a.keys())),
        differences=differences,
        unknown_conditions=tuple(
            name
            for name in Conditions.model_fields
            if getattr(a.conditions, name) is None and getattr(b.conditions, name) is None
        ),
        notes=_notes(a, b, rows),
    )


def measured_under(report: ScalingReport) -> dict[str, str | None]:
    """Return every condition that a sweep's times depend on, by name, with None for unknown ones.

    The conditions are the fields of Conditions, the isolation and the processor of emulated nodes
    (on AWS, the instance type implies the processor), the digest of the user's code, the work of a
    workload sized in seconds, and the config fields that change the work.
    """
    emulated = report.platform.kind == "emulated"
    devices = {
        point.device.name
        for point in report.points
        if point.used and point.device and point.device.name
    }
    source = report.provenance.get("source_uri")
    return {
        **{name: getattr(report.conditions, name) for name in Conditions.model_fields},
        "isolation": report.platform.isolation,
        "device": ("+".join(sorted(devices)) or None) if emulated else None,
        # …/code/<digest>/sourcedir.tar.gz
        "code": (
            source.split("/")[-2] if isinstance(source, str) and source.count("/") > 1 else None
        ),
        **_compared_config_fields(config_of_main(report)),
        **_sized(report),
    }


def _sized(report: ScalingReport) -> dict[str, str | None]:
    """Return the work of a workload sized in seconds, or {} for other workloads.

    The same number of seconds can stand for different amounts of work.
    """
    training = (report.config or {}).get("training")
    seconds = training.get("baseline_seconds") if isinstance(training, Mapping) else None
    used = sorted((point for point in report.points if point.used), key=lambda each: each.nodes)
    if seconds is None:
        return {}
    if not used:
        return {_SIZE: None}
    done = used[0].samples.processed if used[0].samples is not None else None
    amount = "an unknown number of" if done is None else f"{done}"
    at = nodes_text(used[0].nodes)
    return {_SIZE: f"{seconds:g} ({amount} samples at {at})"}


def find_differences(a: ScalingReport, b: ScalingReport) -> tuple[ConditionDifference, ...]:
    """Return every condition that differs between A and B, or is known in only one of them.

    A condition that is unknown in both is not a difference. If either sweep has no used runs, a
    condition in _OF_USED_RUNS that is unknown in one of them is not a difference either.
    """
    in_a, in_b = measured_under(a), measured_under(b)
    if (a.config is None) != (b.config is None):
        in_a, in_b = (
            {
                name: value
                for name, value in side.items()
                if not name.startswith(("training.", "dataset."))
            }
            | {"training": None if report.config is None else "as configured"}
            for side, report in ((in_a, a), (in_b, b))
        )
    unset = None if a.config is None else "not set"
    pairs = {
        name: (in_a.get(name, unset), in_b.get(name, unset))
        for name in dict.fromkeys((*in_a, *in_b))
    } | _row_conditions(a.summary, b.summary)
    unmeasured = _OF_USED_RUNS if a.baseline is None or b.baseline is None else frozenset[str]()
    return tuple(
        ConditionDifference(field=name, a=value_a, b=value_b)
        for name, (value_a, value_b) in pairs.items()
        if value_a != value_b and not (name in unmeasured and None in (value_a, value_b))
    )


def _compared_config_fields(config: Mapping[str, Any] | None) -> dict[str, str]:
    if config is None:
        return {}
    training, dataset = (
        section if isinstance(section, Mapping) else {}
        for section in (config.get("training"), config.get("dataset"))
    )
    fields = {name: text for name, text in _leaves(training) if name not in _NOT_COMPARED}
    distribution = dataset.get("distribution")
    return {f"training.{name}": text for name, text in fields.items()} | {
        "dataset.distribution": str(distribution)
    }


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, value as text) for every value in a nested mapping."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _row_conditions(a: Sequence[SummaryRow], b: Sequence[SummaryRow]) -> dict[str, tuple[str, str]]:
    """Return the row facts that are known in both sweeps and differ, at the smallest node count."""
    in_b = {row.nodes: row for row in b}
    found: dict[str, tuple[str, str]] = {}
    for row in a:
        if row.nodes not in in_b:
            continue
        for name in _OF_A_ROW:
            values = getattr(row, name), getattr(in_b[row.nodes], name)
            if None not in values and values[0] != values[1] and name not in found:
                at = f"at {nodes_text(row.nodes)}"
                found[name] = f"{values[0]} {at}", f"{values[1]} {at}"
    return found


def _allowed(
    differences: Sequence[ConditionDifference], allowed: frozenset[str], force: bool
) -> tuple[ConditionDifference, ...]:
    found = {difference.field for difference in differences}
    known = {*Conditions.model_fields, *_MORE_CONDITIONS, *_OF_A_ROW, *found}
    if unknown := sorted(name for name in allowed - known if not name.startswith("training.")):
        raise ComparisonError(
            f"--allow {unknown[0]}: no such condition; those that differ here:"
            f" {', '.join(sorted(found)) or 'none'}"
        )
    refused = [difference for difference in differences if difference.field not in allowed]
    if refused and not force:
        raise IncomparableError(refused)
    return tuple(
        difference.model_copy(
            update={"accepted": "allowed" if difference.field in allowed else "forced"}
        )
        for difference in differences
    )


def _compared(
    a: SummaryRow,
    b: SummaryRow,
    a_times: Sequence[float],
    b_times: Sequence[float],
    tolerance: float,
) -> ComparedRow:
    interval = ratio_interval(b_times, a_times)
    # computed from the runs, because the rows of older reports have medians
    a_seconds, b_seconds = (
        geometric_mean(times) if times else None for times in (a_times, b_times)
    )
    p_value, p_value_reason = mann_whitney(a_times, b_times)
    verdict, reason = _judge(interval, len(a_times), len(b_times), tolerance)
    a_usd, b_usd = a.costs.total_usd, b.costs.total_usd
    a_result, b_result = _usd_per_result(a, b), _usd_per_result(b, a)
    if a_result is not None and b_result is not None:
        a_usd, b_usd = a_result, b_result
    return ComparedRow(
        nodes=a.nodes,
        n_a=len(a_times),
        n_b=len(b_times),
        a_seconds=a_seconds,
        b_seconds=b_seconds,
        ratio=_ratio(b_seconds, a_seconds),
        ratio_interval=interval,
        p_value=p_value,
        p_value_reason=p_value_reason,
        a_speedup=a.train.speedup,
        b_speedup=b.train.speedup,
        a_total_usd=a.costs.total_usd,
        b_total_usd=b.costs.total_usd,
        a_usd_per_result=a_result,
        b_usd_per_result=b_result,
        cost_ratio=_ratio(b_usd, a_usd),
        a_final_metric=a.final_metric,
        b_final_metric=b.final_metric,
        verdict=verdict,
        reason=reason,
    )


def _usd_per_result(row: SummaryRow, other: SummaryRow) -> float | None:
    """Return the row's expected cost of a result; None if unknown or if neither row needs one.

    A cost per result is needed if an attempt failed in either row. It is unknown for failed
    attempts in reports from before November 2026.
    """
    if row.per_result is None and (row.n_failed or other.per_result is None):
        return None
    return expected(row.costs.total_usd, row.per_result, "usd")


def _judge(interval: Interval | None, n_a: int, n_b: int, tolerance: float) -> tuple[Verdict, str]:
    if interval is None:
        if missing := [name for name, n in (("A", n_a), ("B", n_b)) if n == 0]:
            return "not established", f"no used run in {join_words(missing)}"
        return (
            "not established",
            f"n = {n_a} in A, {n_b} in B: an interval needs {MIN_REPEATS} runs in each",
        )
    low, high = 1 / (1 + tolerance), 1 + tolerance
    if interval.low > high:
        return "regression", f"the interval is above {high:.3g}"
    if interval.high < low:
        return "improvement", f"the interval is below {low:.3g}"
    if low <= interval.low and interval.high <= high:
        return "no difference", f"the interval is within {low:.3g} to {high:.3g}"
    across = [f"{bound:.3g}" for bound in (low, high) if interval.low < bound < interval.high]
    return "not established", f"the interval contains {join_words(across)}"


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, str | None]:
    """Return (two-sided p-value, None), or (None, reason why there is no p-value).

    The smallest p of n and m runs is 2/C(n + m, n); unless that is below 0.05, the test cannot show
    a difference. Up to MOST_RUNS_OF_THE_EXACT_TEST runs per sweep, the test uses Mann and Whitney's
    exact distribution or, with ties, permutations (all, or 9999 drawn with a fixed seed).
    """
    n, m = len(a), len(b)
    smallest = 2 / math.comb(n + m, n) if n and m else 1.0
    if smallest >= SIGNIFICANCE:
        return (
            None,
            f"with n = {n} and {m}, the test cannot give less than p = {min(1.0, smallest):.2g}",
        )
    from scipy.stats import PermutationMethod, mannwhitneyu

    method: Any = "exact"
    if max(n, m) > MOST_RUNS_OF_THE_EXACT_TEST:
        method = "asymptotic"
    elif len({*a, *b}) < n + m:
        import numpy as np

        method = PermutationMethod(rng=np.random.default_rng(_SEED))
    return float(mannwhitneyu(a, b, alternative="two-sided", method=method).pvalue), None


def _notes(a: ScalingReport, b: ScalingReport, rows: Sequence[ComparedRow]) -> tuple[str, ...]:
    notes = []
    if a.points == b.points:
        notes.append("A and B have the same runs, so this compares a sweep with itself.")
    projected = [name for name, each in (("A", a), ("B", b)) if each.train_clock == "projected"]
    if len(projected) == 1:
        measured = "B" if projected == ["A"] else "A"
        notes.append(
            f"T({projected[0]}) is projected from probes but T({measured}) is measured, so what a "
            "probe cannot predict (docs/probe.md) looks like a difference."
        )
    for name, report in (("A", a), ("B", b)):
        unlike = [row.nodes for row in report.summary if "throughput_only" in row.flags]
        if unlike:
            at = join_words(map(nodes_text, unlike))
            notes.append(f"Throughput only at {at} in {name}: a time there is not a time-to-train.")
        if contended := [row.nodes for row in report.summary if "starved" in row.flags]:
            at = join_words(map(nodes_text, contended))
            notes.append(f"Contended at {at} in {name}: a time there is not a valid measurement.")
    if any(row.verdict == "regression" for row in rows):
        notes.append(
            "Two sweeps may also differ in what all runs of a sweep share (hosts, time of day), "
            "which the intervals do not cover; `nodesweep history` does, by comparing with "
            "earlier sweeps."
        )
    if len(rows) > 1:
        notes.append(
            f"Each of the {len(rows)} rows is a separate test, without correction for multiple "
            "testing."
        )
    return tuple(notes)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def _shown(value: str | None) -> str:
    return "unknown" if value is None else value
