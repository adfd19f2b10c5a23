"""Outcomes and reports built from a few numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.outcome.projection import Projection

if TYPE_CHECKING:
    from nodesweep.scaling.report import ScalingReport

GENERATED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def outcome(
    nodes: int, train_seconds: float | None = None, repeat: int = 1, **changes: Any
) -> JobOutcome:
    """Return a completed run with this train time, or a failed run without one."""
    completed = train_seconds is not None
    fields: dict[str, Any] = {
        "attempt": 1,
        "job_name": f"sweep-n{nodes}-r{repeat}-a1-abcd",
        "status": "Completed" if completed else "Failed",
        "reason": None if completed else "AlgorithmError: boom",
        "platform_kind": "aws",
        "instance_type": "ml.m5.xlarge",
        "clocks": Clocks(train_seconds=train_seconds),
        "train_clock": "program" if completed else None,
        **changes,
    }
    return JobOutcome(nodes=nodes, repeat=repeat, **fields)


def outcomes_at(times: dict[int, float | Sequence[float]], **changes: Any) -> list[JobOutcome]:
    """Return outcomes of {nodes: train seconds, or those of several repeats}."""
    made = []
    for nodes, seconds in times.items():
        repeats = seconds if isinstance(seconds, Sequence) else [seconds]
        made += [
            outcome(nodes, each, repeat, **changes) for repeat, each in enumerate(repeats, start=1)
        ]
    return made


def summarise(
    outcomes: Sequence[JobOutcome], *given: Any, **changes: Any
) -> tuple[SummaryRow, ...]:
    """Return summarise_runs() without the attempts that its rows summarize."""
    return summarise_runs(outcomes, *given, **changes)[0]


PROBED_SECONDS = {1: 80.0, 2: 41.0, 4: 21.0}


def projection(seconds: float, error: float | None = 0.5) -> Projection:
    """Return the projection of a probe that made 50 of 500 steps in a tenth of the time.

    It met the end of one epoch.
    """
    return Projection(
        train_seconds=seconds,
        error_seconds=error,
        extra_seconds=seconds * 0.9,
        ended="precise",
        steps=50,
        planned_steps=500,
        measured_seconds=seconds * 0.1,
        parts=(),
        epochs_seen=1,
    )


def probe(nodes: int, repeat: int = 1, error: float | None = 0.5, **changes: Any) -> JobOutcome:
    """Return a probe that projects its node count's time plus one second per further repeat."""
    seconds = PROBED_SECONDS[nodes] + repeat - 1
    fields: dict[str, Any] = {
        "train_clock": "projected",
        "train_seconds_by": {"projected": seconds},
        "projection": projection(seconds, error),
        "clocks": Clocks(train_seconds=seconds, billable_seconds=30.0, submit_to_end_seconds=40.0),
    }
    return outcome(nodes, seconds, repeat, **{**fields, **changes})


@pytest.fixture(scope="session", autouse=True)
def drawing_is_not_traced() -> Iterator[None]:
    """While coverage is measured, leave out matplotlib's own drawing, which would take four times
    as long.
    """
    if sys.gettrace() is None:
        yield
        return
    from matplotlib.figure import Figure

    draw = Figure.savefig

    def untraced(figure: Figure, *arguments: Any, **named: Any) -> None:
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            draw(figure, *arguments, **named)
        finally:
            sys.settrace(trace)
            _traced_again()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", untraced)
        yield


@pytest.fixture(autouse=True)
def pages_without_plots(request: pytest.FixtureRequest) -> None:
    """Leave plots out of rendered reports, except in tests that ask for them."""
    if not {"pages_with_plots", "pages_with_saved_plots"} & {*request.fixturenames}:
        request.getfixturevalue("without_plots")


@pytest.fixture
def pages_with_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the plots of rendered reports, but save only their names: saving takes longer."""
    for name in ("to_svg", "to_png"):
        monkeypatch.setattr(f"nodesweep.scaling.report.render.{name}", _name_of)


def _name_of(drawing: Any) -> bytes:
    return str(drawing.kind).encode()


@pytest.fixture
def pages_with_saved_plots() -> None:
    """Draw the plots of rendered reports as for a user."""


def _traced_again() -> None:
    """Trace again; tracing begins with the first call after settrace(), not with the line it
    returns to."""


@pytest.fixture
def probe_config(make_config: Callable[..., Any]) -> Callable[..., Any]:
    """Return a factory of probe sweeps over 1, 2, and 4 nodes, as in `probe_config(repeats=3)`."""

    def make(**sweep: Any) -> Any:
        given = {"design": "probe", "node_counts": [1, 2, 4], "repeats": 1, **sweep}
        return make_config(sweep=given)

    return make


@pytest.fixture
def probes() -> Callable[..., list[JobOutcome]]:
    """Return a factory of probes, one at each (nodes, repeat).

    `probes([(1, 1), (2, 1)], error=…)`
    """

    def make(points: Sequence[tuple[int, int]], **changes: Any) -> list[JobOutcome]:
        return [probe(nodes, repeat, **changes) for nodes, repeat in points]

    return make


@pytest.fixture
def whole() -> Callable[..., JobOutcome]:
    """Return a factory of full runs on the program's clock: `whole(nodes, seconds, repeat)`."""

    def make(nodes: int, seconds: float, repeat: int = 2, **changes: Any) -> JobOutcome:
        by = {"train_seconds_by": {"program": seconds}}
        return outcome(nodes, seconds, repeat, **{**by, **changes})

    return make


@pytest.fixture
def make_outcome() -> Callable[..., JobOutcome]:
    """Provide outcome() as a fixture."""
    return outcome


@pytest.fixture
def make_outcomes() -> Callable[..., list[JobOutcome]]:
    """Provide outcomes_at() as a fixture."""
    return outcomes_at


@pytest.fixture
def make_report() -> Callable[..., ScalingReport]:
    """Return a factory of reports at a fixed time.

    `make_report(outcomes, config=…, plan=…, price=…, provenance=…)`
    """
    from nodesweep.scaling.report import analyse

    def make(outcomes: Sequence[JobOutcome], **given: Any) -> ScalingReport:
        return analyse(
            given.get("sweep_id", "bench-20260102030405-0a1b2c3d"),
            given.get("config"),
            given.get("plan"),
            outcomes,
            given.get("price"),
            given.get("provenance", {}),
            GENERATED_AT,
        )

    return make
