"""Times of runs on CPUs whose speed moved (docs/method.md, "What a CPU second is worth")."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from scaling.outcome.cpu_speed import at_one_speed, cpu_speed, format_cpu_speed
from scaling.report.facts import sweep_facts
from scaling.report.tables.attempts import attempts_table
from tests.scaling.conftest import summarise


@dataclass(frozen=True)
class Run:
    """A run and what was measured of its nodes."""

    utilisation: dict[str, float] = field(default_factory=dict)


def ran(speed: float, quota_used: float = 100.0) -> dict[str, float]:
    return {"cpu_speed_percent": speed, "quota_used_percent": quota_used}


def test_each_time_is_brought_to_the_middle_speed():
    factors = at_one_speed([Run(ran(70.0)), Run(ran(80.0)), Run(ran(100.0))])
    assert factors == pytest.approx([70 / 80, 1.0, 100 / 80])


def test_time_in_which_nodes_used_no_cpu_is_not_shorter_on_a_faster_one():
    factors = at_one_speed([Run(ran(70.0, 0.0)), Run(ran(80.0)), Run(ran(100.0, 20.0))])
    assert factors == pytest.approx([1.0, 1.0, 1.05])


@pytest.mark.parametrize("unknown", [{}, {"cpu_speed_percent": 70.0}, {"quota_used_percent": 9.0}])
def test_where_one_run_is_not_known_all_are_as_measured(unknown: dict[str, float]):
    assert at_one_speed([Run(ran(70.0)), Run(unknown)]) is None
    assert at_one_speed([]) is None


def test_a_speed_in_words():
    assert format_cpu_speed(cpu_speed(Run(ran(74.4)))) == "0.74 GB/s"
    assert format_cpu_speed(cpu_speed(Run())) == "–"


def test_ratios_are_of_times_at_one_speed_and_times_are_as_measured(make_outcome):
    """Two nodes on CPUs that were a quarter faster than those of one node."""
    outcomes = [
        make_outcome(1, 50.0, utilisation=ran(80.0)),
        make_outcome(2, 20.0, utilisation=ran(100.0)),
    ]
    one, two = summarise(outcomes)
    assert (one.train.seconds, two.train.seconds) == (50.0, 20.0)
    assert (one.train.speedup, two.train.speedup) == (1.0, pytest.approx(2.0))
    assert two.train.efficiency == pytest.approx(1.0)
    assert two.train.doubling_ratio == pytest.approx(2.0)
    [_, raw] = summarise([outcomes[0], make_outcome(2, 20.0)])
    assert raw.train.speedup == pytest.approx(2.5)


def test_the_report_says_how_fast_the_machine_was_and_of_what_the_ratios_are(
    make_outcome, make_report
):
    outcomes = [
        make_outcome(1, 50.0, utilisation=ran(80.0)),
        make_outcome(2, 20.0, utilisation=ran(100.0)),
    ]
    report = make_report(outcomes)
    facts = dict(sweep_facts(report))
    assert facts["CPU speed"] == (
        "0.90 GB/s of BLAKE2b in a CPU second (0.80 GB/s to 1.00 GB/s); S, E, D and e are of the"
        " times at its median, T is as measured"
    )
    assert any("CPUs were 25 % faster in some runs" in caveat for caveat in report.caveats)
    [column] = [each for each in attempts_table(report).columns if each.heading == "CPU speed"]
    assert column is not None
    report = make_report([outcomes[0], make_outcome(2, 20.0)])
    assert "not known of every run" in dict(sweep_facts(report))["CPU speed"]
    assert not any("CPUs were" in caveat for caveat in report.caveats)
