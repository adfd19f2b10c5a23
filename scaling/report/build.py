"""JobOutcomes -> ScalingReport. Pure: the time and everything that was looked up comes in as an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from configs.models import BenchmarkConfig
from scaling.cost import Price, run_cost_usd, unknown_price
from scaling.outcome import JobOutcome, PlatformKind
from scaling.plan import POLICY_LABELS, SweepPlan
from scaling.report.caveats import Evidence, find_caveats
from scaling.report.headline import write_headline
from scaling.report.model import (
    DeviceFacts,
    PlatformFacts,
    Point,
    PointClocks,
    SampleCounts,
    ScalingReport,
    SteadyWindow,
)
from scaling.speedup import FinalMetric, TrainClock, baseline_of, choose_train_clock, summarise, train_seconds_on

UNKNOWN_POLICY_LABEL = "batch policy unknown"
HIDDEN = "(hidden)"
# The config says "no secrets here", and reports are passed around: a value under such a name is not repeated anyway.
# HF_TOKEN is one; tokenizer, max_tokens and our own platform.credentials ("chain") are not.
_SECRET_NAME = re.compile(r"(?<![a-z])(token|secret|password|passwd)(?![a-z])|api_?key|access_?key", re.IGNORECASE)


def build_report(
    sweep_id: str,
    config: BenchmarkConfig | None,
    plan: SweepPlan | None,
    outcomes: Sequence[JobOutcome],
    price: Price | None,
    provenance: Mapping[str, Any],
    generated_at: datetime,
) -> ScalingReport:
    """Every number of the report. Raises ValueError without outcomes, MixedOutcomesError where they don't compare."""
    if not outcomes:
        raise ValueError(f"sweep {sweep_id}: no outcome to report, not one job was accepted")
    planned = sorted({(point.nodes, point.repeat) for point in plan.points}) if plan is not None else []
    rows = summarise(outcomes, price, planned_nodes={nodes for nodes, _ in planned})
    clock = choose_train_clock(outcomes)
    platform = _platform(outcomes)
    price = price or unknown_price(platform.instance_type, "none was given")
    points = tuple(
        _point(outcome, clock, price) for outcome in sorted(outcomes, key=lambda o: (o.nodes, o.repeat, o.attempt))
    )
    baseline = baseline_of(rows)
    evidence = Evidence(platform, clock, baseline, rows, points, price, tuple(planned))
    policy = config.training.batch.policy if config is not None else None
    return ScalingReport(
        sweep_id=sweep_id,
        title=(config.report.title or config.name) if config is not None else sweep_id,
        generated_at=generated_at.astimezone(UTC).isoformat(timespec="seconds"),
        headline=write_headline(platform.kind, baseline, rows, jobs=len(outcomes)),
        platform=platform,
        policy=policy,
        policy_label=POLICY_LABELS[policy] if policy is not None else UNKNOWN_POLICY_LABEL,
        train_clock=clock,
        baseline=baseline,
        summary=rows,
        points=points,
        price=price,
        caveats=find_caveats(evidence),
        config=hide_secrets(config.model_dump(mode="json")) if config is not None else None,
        provenance=hide_secrets(dict(provenance)),
    )


def hide_secrets(value: Any) -> Any:
    """The value with every entry whose name looks like a secret's replaced; null and numbers stay."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(entry, str) and _SECRET_NAME.search(str(key)) else hide_secrets(entry)
            for key, entry in value.items()
        }
    return [hide_secrets(entry) for entry in value] if isinstance(value, list | tuple) else value


def _platform(outcomes: Sequence[JobOutcome]) -> PlatformFacts:
    """The platform all outcomes share; summarise() has refused mixed ones."""
    kind: PlatformKind = outcomes[0].platform_kind
    isolations = sorted({outcome.isolation for outcome in outcomes if outcome.isolation})
    types = {outcome.instance_type for outcome in outcomes if outcome.instance_type}
    return PlatformFacts(
        kind=kind, isolation="; ".join(isolations) or None, instance_type=types.pop() if types else None
    )


def _point(outcome: JobOutcome, clock: TrainClock | None, price: Price) -> Point:
    metric = outcome.final_metric
    return Point(
        nodes=outcome.nodes,
        repeat=outcome.repeat,
        attempt=outcome.attempt,
        job_name=outcome.job_name,
        status=outcome.status,
        used=train_seconds_on(outcome, clock) is not None,
        reason=outcome.reason,
        log_tail=() if outcome.completed else outcome.log_tail,
        created_at=outcome.created_at,
        instance_type=outcome.instance_type,
        isolation=outcome.isolation,
        clocks=PointClocks(
            submit_to_end_seconds=outcome.clocks.submit_to_end_seconds,
            billable_seconds=outcome.clocks.billable_seconds,
            train_seconds=outcome.clocks.train_seconds,
            steady_step_seconds=outcome.clocks.steady_step_seconds,
        ),
        train_clock=outcome.train_clock,
        phases=dict(outcome.phases),
        world_size=outcome.world_size,
        global_batch_size=outcome.global_batch_size,
        per_replica_batch_size=outcome.per_replica_batch_size,
        learning_rate=outcome.learning_rate,
        final_metric=FinalMetric(**metric) if metric is not None else None,
        data_wait_share=outcome.metric_number("data_wait_share"),
        steady=_steady(outcome) if outcome.metrics else None,
        samples=_samples(outcome) if outcome.metrics else None,
        device=_device(outcome) if outcome.metrics else None,
        cost_usd=run_cost_usd(outcome.nodes, outcome.clocks.billable_seconds, price),
    )


def _steady(outcome: JobOutcome) -> SteadyWindow | None:
    steady = SteadyWindow(
        steps=_whole(outcome, "steady", "steps"),
        seconds=outcome.metric_number("steady", "seconds"),
        short_window=outcome.metric_flag("steady", "short_window"),
    )
    return steady if any(value is not None for _, value in steady) else None


def _samples(outcome: JobOutcome) -> SampleCounts | None:
    counts = SampleCounts(**{name: _whole(outcome, "samples", name) for name in SampleCounts.model_fields})
    return counts if any(value is not None for _, value in counts) else None


def _device(outcome: JobOutcome) -> DeviceFacts | None:
    device = DeviceFacts(
        type=outcome.metric_text("device", "type"),
        name=outcome.metric_text("device", "name"),
        count_per_node=_whole(outcome, "device", "count_per_node"),
        cpu_quota_cores=outcome.metric_number("device", "cpu_quota_cores"),
        threads=_whole(outcome, "device", "threads"),
    )
    return device if any(value is not None for _, value in device) else None


def _whole(outcome: JobOutcome, *path: str) -> int | None:
    number = outcome.metric_number(*path)
    return int(number) if number is not None and number.is_integer() else None
