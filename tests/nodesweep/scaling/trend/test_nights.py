"""How much the sweeps of a benchmark differ according to its history, and the effect on an
answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pandas import DataFrame

from nodesweep.configs.models import RecommendationConfig, ReportConfig
from nodesweep.scaling.report import ScalingReport, analyse
from nodesweep.scaling.trend.history import history_frame
from nodesweep.scaling.trend.nights import night_sigmas

Outcomes = Callable[..., Any]
History = Callable[..., list[ScalingReport]]
# deviations of log T, with a standard deviation of 3% by their successive differences
NIGHTS = (0.0, 0.03, -0.02, 0.02, -0.03, 0.01, -0.02, 0.03)
START = datetime(2026, 11, 1, 3, tzinfo=UTC)


@pytest.fixture
def history(make_outcomes: Outcomes) -> History:
    """Return reports of nights whose times differ by these logarithms, as in history(nights,
    **facts)."""

    def make(nights: tuple[float, ...] = NIGHTS, **facts: Any) -> list[ScalingReport]:
        reports = []
        for day, shift in enumerate(nights):
            at = START + timedelta(days=day)
            times = {1: 100 * math.exp(shift), 2: 50 * math.exp(shift)}
            outcomes = make_outcomes(times, **{"created_at": at.isoformat(), **facts})
            sweep = f"bench-{at:%Y%m%d%H%M%S}-0a1b2c3d"
            reports.append(analyse(sweep, None, None, outcomes, None, {}, at))
        return reports

    return make


def frames(reports: list[ScalingReport]) -> list[DataFrame]:
    return [history_frame(report) for report in reports]


def test_nights_differ_by_the_charts_standard_deviation(history: History) -> None:
    reports = history()
    sigmas = night_sigmas(reports[-1], frames(reports[:-1]))
    assert sigmas == {1: pytest.approx(0.05, abs=0.02), 2: pytest.approx(sigmas[1])}
    # the sweep itself, in the history already, is no other night
    assert night_sigmas(reports[-1], frames(reports)) == sigmas


def test_few_or_other_nights_show_nothing(history: History) -> None:
    reports = history()
    assert night_sigmas(reports[-1], []) == {}
    assert night_sigmas(reports[-1], frames(reports[:4])) == {}
    assert night_sigmas(reports[-1], frames(history(instance_type="ml.g5.xlarge"))) == {}
    contended = history(utilisation={"attained_percent": 50.0})
    assert night_sigmas(contended[-1], frames(contended[:-1])) == {}


def test_the_report_judges_the_next_night(history: History, make_outcomes: Outcomes) -> None:
    reports = history()
    nights = night_sigmas(reports[-1], frames(reports[:-1]))
    rules = ReportConfig(recommendation=RecommendationConfig(deadline_seconds=60))

    def judged(nights: dict[int, float] | None) -> ScalingReport:
        outcomes = make_outcomes({1: 100, 2: 50})
        return analyse("sweep", None, None, outcomes, None, {}, START, rules, nights=nights)

    alone, known = judged(None), judged(nights)
    assert alone.recommendation is not None and alone.recommendation.chosen is None
    assert known.recommendation is not None and known.recommendation.chosen is not None
    assert known.recommendation.chosen.nodes == 2
    assert [row.night_sigma for row in known.summary] == list(nights.values())
