"""Caveats about metric definitions that matched nothing and numbers that were read in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodesweep.scaling.formats import join_words, point_text
from nodesweep.scaling.outcome.logged import CutNumber
from nodesweep.scaling.outcome.outcome import JobOutcome


def find_unmatched(outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a caveat for each metric definition that matched nothing in the log of some job."""
    jobs: dict[tuple[str, str], list[JobOutcome]] = {}
    nearest: dict[tuple[str, str], str] = {}
    for outcome in outcomes:
        for metric in outcome.unmatched_metrics:
            jobs.setdefault((metric.name, metric.regex), []).append(outcome)
            if metric.nearest is not None:
                nearest.setdefault((metric.name, metric.regex), metric.nearest)
    for definition, without in jobs.items():
        name, regex = definition
        at = join_words(point_text(job.nodes, job.repeat) for job in without)
        line = nearest.get(definition)
        like = "no line there is similar" if line is None else f"the most similar line is “{line}”"
        yield (
            f"Metric {name} was never printed in the form of its definition: {regex!r} "
            f"(training.metric_definitions) found no number in the log of {at}; {like}. Make "
            "the expression match what the program prints, or change what it prints."
        )


def find_cut(outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a caveat for each name whose number was read only in part, with an example."""
    jobs: dict[tuple[str, str | None], list[JobOutcome]] = {}
    first: dict[tuple[str, str | None], CutNumber] = {}
    for outcome in outcomes:
        for number in outcome.cut_numbers:
            jobs.setdefault((number.name, number.regex), []).append(outcome)
            first.setdefault((number.name, number.regex), number)
    for key, number in first.items():
        at = join_words(point_text(job.nodes, job.repeat) for job in jobs[key])
        yield f"A number in the log of {at} was ignored: {number.text}"
