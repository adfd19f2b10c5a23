"""The result in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.formats import format_percent, format_seconds, format_speedup, jobs_text, join_words
from scaling.outcome import PlatformKind
from scaling.speedup import Baseline, SummaryRow

_ADJECTIVES: dict[PlatformKind, str] = {"aws": "", "emulated": "emulated ", "simulated": "simulated ", "measured": ""}


def write_headline(kind: PlatformKind, baseline: Baseline | None, rows: Sequence[SummaryRow], jobs: int) -> str:
    """The fastest node count against the baseline, then what was slower and what did not complete."""
    if baseline is None:
        return f"Nothing to compare: none of {jobs_text(jobs)} completed with a train time."
    measured = [row for row in rows if row.train_seconds is not None]
    sentence = _compare(kind, baseline, measured)
    failed = sum(row.n_failed for row in rows)
    if failed:
        sentence += f"; {failed} of {jobs_text(jobs)} did not complete"
    return sentence + "."


def _compare(kind: PlatformKind, baseline: Baseline, measured: Sequence[SummaryRow]) -> str:
    base = f"{_nodes(kind, baseline.nodes)} ({format_seconds(baseline.train_seconds)})"
    if len(measured) == 1:
        return f"One node count only, {base}: there is no speedup to show"
    fastest = max(measured, key=lambda row: (row.speedup or 0.0, -row.nodes))
    if fastest.nodes == baseline.nodes:
        return f"No node count was faster than {base}"
    time = f"{format_seconds(baseline.train_seconds)} → {format_seconds(fastest.train_seconds)}"
    sentence = (
        f"{_nodes(kind, fastest.nodes)}: {format_speedup(fastest.speedup)} faster than {baseline.nodes} "
        f"(efficiency {format_percent(fastest.efficiency)}, {time})"
    )
    if "throughput_only" in fastest.flags:
        sentence += ", throughput only"
    slower = [row for row in measured if row.nodes > fastest.nodes and (row.speedup or 0.0) < (fastest.speedup or 0.0)]
    if slower:
        counts = join_words(row.nodes for row in slower)
        sentence += f"; {counts} were slower ({join_words(format_speedup(row.speedup) for row in slower)})"
    return sentence


def _nodes(kind: PlatformKind, nodes: int) -> str:
    return f"{nodes} {_ADJECTIVES[kind]}{'node' if nodes == 1 else 'nodes'}"
