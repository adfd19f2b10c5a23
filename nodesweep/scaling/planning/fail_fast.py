"""Choose the next job, and decide when to give up on a sweep.

flows/stages/sweep.py carries out these decisions.

Code that has never completed a point is tried at a small size first: until one job has reached its
first step or completed, jobs run one at a time, the smallest first. A sweep ends on one failure
that every job would repeat (an import, argument or syntax error), on two consecutive failures of
the program with the same cause, or on two completed probes that gave no train time for the same
reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from nodesweep.configs.models import SweepConfig, TrainingConfig
from nodesweep.configs.training import compile_metric
from nodesweep.scaling import names
from nodesweep.scaling.formats import agree
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.outcome.failure import memory_that_ran_out
from nodesweep.scaling.outcome.logged import searchable
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.outcome.plain_lines import plain_lines
from nodesweep.scaling.outcome.program_error import failure_cause

# FailureReason prefixes for a fault of the program or its inputs
_PROGRAMS_FAULT = ("AlgorithmError", "ClientError")
# For programs without metric definitions: step=12, "step 12" or "Step: 12/300".
_STEP = re.compile(r"\bstep\b\s*(?:[=:]\s*)?\d", re.IGNORECASE)


_CERTAIN = re.compile(
    r"(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)\b"
    r"|.{1,80}: can't open file "
    r"|.{0,80}\berror: (?:the following arguments are required|unrecognized arguments"
    r"|ambiguous option|argument [^:]{1,200}: (?:invalid|expected|ignored explicit|not allowed))"
    r"|.{0,20}(?:No such option|Missing (?:option|argument|parameter)"
    r"|Got unexpected extra argument)",
    re.IGNORECASE,
)
"""Matches errors in code or arguments, which make a program fail on any number of nodes."""


class Candidate(NamedTuple):
    """A waiting attempt; `is_there` is True if an earlier run has started its job."""

    nodes: int
    is_there: bool


def code_digest(training: TrainingConfig, inputs: ResolvedInputs) -> str:
    """Return a digest of the image, code, entry point, argument names and launcher.

    Argument values are left out, because they rarely keep a program from starting.
    """
    return names.canonical_digest(
        {
            "image": inputs.image_uri,
            "source": inputs.source_uri,
            "entry_point": training.entry_point,
            "arguments": sorted(training.hyperparameters),
            "distribution": training.distribution.model_dump(mode="json"),
        }
    )


def needs_smoke(sweep: SweepConfig) -> bool:
    """Return True if a small job should test the code before larger ones start."""
    return sweep.smoke == "auto" and len(sweep.node_counts) * sweep.arm_count > 1


def next_to_start(waiting: Sequence[Candidate], running: int, is_proven: bool) -> int | None:
    """Return the index of the attempt to start now; None to wait for the running jobs.

    Until the code is proven, existing jobs come first, then the smallest node count, alone.

    Args:
        waiting: The waiting attempts, in order.
        running: The number of running jobs.
        is_proven: True if the code has reached its first step.

    Raises:
        ValueError: No attempt is waiting.
    """
    if not waiting:
        raise ValueError("no attempt is waiting")
    if is_proven:
        return 0
    there = next((index for index, candidate in enumerate(waiting) if candidate.is_there), None)
    if there is not None or running:
        return there
    return min(range(len(waiting)), key=lambda index: waiting[index].nodes)


def is_step(line: str, metric_definitions: Mapping[str, str]) -> bool:
    """Return True if a log line reports a step.

    Either a metric definition matches, or the line contains a step number.
    """
    parts = plain_lines(line)
    texts = [searchable(line), *(searchable(part.text) for part in parts)]
    return any(_STEP.search(searchable(part.unmarked)) for part in parts) or any(
        compile_metric(regex).search(text)
        for regex in metric_definitions.values()
        for text in dict.fromkeys(texts)
    )


def reason_to_give_up(ended: Sequence[JobOutcome]) -> str | None:
    """Return the reason to give up on a sweep, or None.

    One failure that is certain to recur is enough if no job has completed. Otherwise it takes two
    in a row with the same cause: only failures of the program and jobs without a train time count,
    and any other completed job resets the count. Lack of capacity, internal errors and stops say
    nothing about the program and are skipped. Running out of memory is the same cause only at the
    same batch size, because a different node count may need less memory.

    Args:
        ended: The outcomes of this run in the order in which its jobs ended.
    """
    failed: list[JobOutcome] = []
    for outcome in ended:
        if outcome.unprojected is not None or is_programs_fault(outcome):
            failed.append(outcome)
        elif outcome.completed:
            failed.clear()
    error = failed[-1].program_error if failed else None
    if (
        error is not None
        and is_deterministic_failure(failed[-1])
        and not any(each.completed for each in ended)
    ):
        return f"the program fails this way on any number of nodes: {error.text}"
    if len(failed) < 2 or _cause(failed[-1]) != _cause(failed[-2]):
        return None
    if failed[-1].unprojected is not None:
        return f"two jobs in a row gave no train time: {failed[-1].unprojected}"
    message = error.text if error else failed[-1].reason
    return f"the program failed twice in a row with the same cause: {message}"


def given_up_caveat(
    planned: Sequence[tuple[int, int]], outcomes: Sequence[JobOutcome]
) -> str | None:
    """Return a caveat on how many points of an abandoned sweep were never tried, and why.

    `planned` are all points as (nodes, repeat).
    """
    tried = {(outcome.nodes, outcome.repeat) for outcome in outcomes}
    left = sum(point not in tried for point in planned)
    reason = reason_to_give_up(sorted(outcomes, key=lambda outcome: outcome.created_at or ""))
    return (
        f"{left} of {len(planned)} planned points {agree(left, 'was', 'were')} not run: {reason}."
        if left and reason
        else None
    )


class Ended(Protocol):
    """A run that has ended: a JobOutcome or a Point."""

    @property
    def status(self) -> str:
        """Completed, Failed or Stopped."""

    @property
    def reason(self) -> str | None:
        """Why it did not complete; None if it did."""


def is_programs_fault(outcome: Ended) -> bool:
    """Return True if the job failed because of the program or its inputs."""
    return outcome.status == "Failed" and (outcome.reason or "").startswith(_PROGRAMS_FAULT)


def is_deterministic_failure(outcome: JobOutcome) -> bool:
    """Return True if every job with the same code and arguments would fail in the same way.

    This applies to import, argument and syntax errors.
    """
    error = outcome.program_error
    return is_programs_fault(outcome) and error is not None and bool(_CERTAIN.match(error.said))


def _cause(outcome: JobOutcome) -> tuple[str, int | None]:
    if outcome.unprojected is not None:
        return outcome.unprojected, None
    lack = memory_that_ran_out(outcome.reason, [*outcome.log_tail, *outcome.other_log_tail])
    return failure_cause(outcome.reason, outcome.program_error), (
        outcome.per_replica_batch_size if lack else None
    )
