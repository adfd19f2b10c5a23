"""Caveats about jobs whose train time was projected or is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.formats import join_words, nodes_text, pluralize
from nodesweep.scaling.outcome.observed import NO_OWN_CLOCK
from nodesweep.scaling.outcome.outcome import PHASE_CLOCKS, JobOutcome


def unprojected_notes(outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a caveat for each reason why probes gave no train time."""
    by_reason: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.unprojected is not None:
            by_reason.setdefault(outcome.unprojected, []).append(outcome.nodes)
    for reason, counts in by_reason.items():
        at = join_words(map(nodes_text, sorted(set(counts))))
        page = "own-code" if reason == NO_OWN_CLOCK else "probe"
        yield (
            f"{pluralize(len(counts), 'job')} at {at} gave no train time: {reason} "
            f"(docs/{page}.md)."
        )


def unobserved_notes(outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield caveats about programs that report no train time and could not be observed.

    Programs that report their own time are left out.
    """
    by_reason: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.not_observed is not None and outcome.train_clock in PHASE_CLOCKS:
            by_reason.setdefault(outcome.not_observed, []).append(outcome.nodes)
    for reason, counts in by_reason.items():
        at = join_words(map(nodes_text, sorted(set(counts))))
        yield f"Not measured in {pluralize(len(counts), 'job')} at {at}: {reason}."


def unrequested_partial_notes(
    config: BenchmarkConfig | None, outcomes: Sequence[JobOutcome]
) -> Iterator[str]:
    """Yield caveats about runs that stopped early without a request, whose times are projected.

    These are jobs that should have been full runs, and probes that were not asked to stop.
    """
    if config is None:
        return
    parts = [outcome for outcome in outcomes if outcome.projection is not None]
    whole = [each for each in parts if not config.ends_early(each.repeat)]
    if whole:
        yield (
            f"Partial runs: jobs that should have run all their steps ran {_parts_text(whole)}; "
            "the time of the rest is projected. Look for a step limit left in the program, its "
            "hyperparameters or its image; use design: probe to measure partial runs and "
            "validate them."
        )
    untold = [
        each for each in parts if each not in whole and each.metric("probe", "ended") == "complete"
    ]
    if untold:
        yield (
            f"Stopped early for an unknown reason: probes ran {_parts_text(untold)}, although "
            "nothing had asked them to stop. The projection covers all steps that the program "
            "reports for a full run. If a full run has only the steps that ran, the program "
            "reports too many."
        )


def _parts_text(parts: Sequence[JobOutcome]) -> str:
    """Return, for example, "50 of 500 steps at 1 node and 50 of 500 steps at 2 nodes"."""
    by_nodes = {each.nodes: each.projection for each in parts if each.projection is not None}
    return join_words(
        f"{part.steps} of {part.planned_steps} steps at {nodes_text(nodes)}"
        for nodes, part in sorted(by_nodes.items())
    )
