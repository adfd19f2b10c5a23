"""Runs on CPUs whose speed varied (docs/method.md, "What a CPU second is worth")."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodesweep.scaling.outcome.cpu_speed import cpu_speed, format_cpu_speed
from nodesweep.scaling.report.facts import sweep_facts
from nodesweep.scaling.report.tables.attempts import attempts_table


@dataclass(frozen=True)
class Run:
    """A run and the measurements of its nodes."""

    utilisation: dict[str, float] = field(default_factory=dict)


def ran(speed: float) -> dict[str, float]:
    return {"cpu_speed_percent": speed}


def test_a_speed_in_words():
    assert format_cpu_speed(cpu_speed(Run(ran(74.4)))) == "0.74 GB/s"
    assert format_cpu_speed(cpu_speed(Run())) == "–"


def test_the_report_says_how_fast_the_machine_was_and_changes_no_number_for_it(
    make_outcome, make_report, snapshot
):
    outcomes = [
        make_outcome(1, 50.0, utilisation=ran(80.0)),
        make_outcome(2, 20.0, utilisation=ran(100.0)),
    ]
    report = make_report(outcomes)
    assert report.summary[1].train.speedup == 2.5
    assert dict(sweep_facts(report))["CPU speed"] == snapshot
    assert report.caveats == snapshot
    assert "CPU speed" in attempts_table(report).cells
    report = make_report([outcomes[0], make_outcome(2, 20.0)])
    assert dict(sweep_facts(report))["CPU speed"] == snapshot
    assert not any("CPUs were" in caveat for caveat in report.caveats)


def test_speedups_at_equal_speed_are_given_only_where_every_speed_is_known(
    make_outcome, make_report
):
    slow, fast, unmeasured = ran(80.0), ran(100.0), ran(0.0)

    def caveat(*runs: tuple[int, float, dict[str, float]]) -> str:
        outcomes = [
            make_outcome(nodes, seconds, repeat=index, utilisation=speed)
            for index, (nodes, seconds, speed) in enumerate(runs, start=1)
        ]
        return next(text for text in make_report(outcomes).caveats if "CPUs were" in text)

    assert "At equal CPU speed: 2.0x at 2 nodes (" in caveat((1, 50.0, slow), (2, 20.0, fast))
    # medians of 40, 44 and 48 (1 node) and of 11 (4 nodes)
    runs = ((1, 50.0, slow), (1, 44.0, fast), (1, 60.0, slow), (4, 11.0, fast))
    assert "At equal CPU speed: 4.0x at 4 nodes (" in caveat(*runs)
    assert "At equal" not in caveat((1, 50.0, slow), (2, 20.0, fast), (4, 9.0, unmeasured))
    assert "At equal" not in caveat((1, 50.0, slow), (1, 40.0, fast))
