"""The best node count for a given value of an hour of waiting, compared with values by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.hour_value import hour_value_ranges, hour_value_text
from nodesweep.scaling.analysis.recommend import recommend
from tests.nodesweep.scaling.analysis.test_recommend import (
    advise,
    chosen,
    rows_of,
    runner_up,
    why_not,
)

HOURS = {1: 4 * 3600.0, 2: 2 * 3600.0, 4: 3600.0, 8: 1800.0}
USD = {1: 10.0, 2: 12.0, 4: 13.0, 8: 20.0}


def ranges_of(times, usd):
    return [
        (each.nodes, each.from_usd, each.to_usd) for each in hour_value_ranges(rows_of(times, usd))
    ]


def test_ranges_are_where_the_totals_cross(snapshot):
    # 1 to 2 nodes: 2 USD for 2 h; 1 to 4: 3 for 3 h, also 1 USD an hour, so 2 nodes are never
    # better than both; 4 to 8: 7 USD for half an hour
    assert ranges_of(HOURS, USD) == [(1, 0, 1), (4, 1, 14), (8, 14, None)]
    assert hour_value_text(hour_value_ranges(rows_of(HOURS, USD))) == snapshot
    assert ranges_of(HOURS, {1: 10, 2: 11, 4: 13, 8: 20}) == [
        (1, 0, 0.5),
        (2, 0.5, 2),
        (4, 2, 14),
        (8, 14, None),
    ]


def test_of_many_ranges_the_first_and_the_last_are_named():
    counts = range(1, 13)
    rows = rows_of({n: 3600 / n for n in counts}, {n: 1 + n * n / 100 for n in counts})
    told = hour_value_text(hour_value_ranges(rows))
    assert told is not None
    assert "4 nodes if $0.8400 to $1.80, … (4 more in report.json), 9 nodes if" in told


def test_a_count_that_is_dominated_is_never_the_best():
    assert ranges_of({1: 7200, 2: 7300, 4: 3600}, {1: 10, 2: 11, 4: 14}) == [
        (1, 0, 4),
        (4, 4, None),
    ]
    # as cheap and faster: at any value, and that is what the text says
    rows = rows_of({1: 7200, 2: 3600}, {1: 10, 2: 10})
    ranges = hour_value_ranges(rows)
    assert [each.text for each in ranges] == ["whatever an hour is worth"]
    assert hour_value_text(ranges) == (
        "the least mean cost plus waiting is at 2 nodes, whatever an hour is worth"
    )
    assert ranges_of({1: 7200, 2: 7200}, {1: 10, 2: 10}) == [(1, 0, None)]


@pytest.mark.parametrize(
    ("times", "usd"),
    [
        ({1: 7200, 2: None}, {1: 10, 2: 10}),
        ({1: 7200, 2: 3600}, None),
        ({1: 7200, 2: 3600, 4: 1800}, {1: 10, 2: 11}),
    ],
)
def test_no_range_without_two_counts_of_known_cost(times, usd):
    assert ranges_of(times, usd) == []
    assert hour_value_text(()) is None


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=2, max_size=6),
    st.floats(1e-3, 1e6),
)
def test_ranges_agree_with_brute_force(points, value):
    times = {2**place: float(seconds) for place, (seconds, _) in enumerate(points)}
    usd = {2**place: cents / 100 for place, (_, cents) in enumerate(points)}
    ranges = hour_value_ranges(rows_of(times, usd))
    assert ranges[0].from_usd == 0
    assert ranges[-1].to_usd is None
    assert [each.to_usd for each in ranges[:-1]] == [each.from_usd for each in ranges[1:]]
    totals = {nodes: usd[nodes] + value * times[nodes] / 3600 for nodes in times}
    here = next(each for each in ranges if each.to_usd is None or value <= each.to_usd)
    assert totals[here.nodes] == pytest.approx(min(totals.values()), rel=1e-6)
    answer = advise(times, usd, hour_value_usd=value)
    assert totals[chosen(answer)] == pytest.approx(min(totals.values()), rel=1e-6)


def test_the_value_of_an_hour_decides_instead_of_the_conventions(snapshot):
    cheap = advise(HOURS, USD, hour_value_usd=0.5)
    assert (cheap.rule, cheap.basis, chosen(cheap)) == ("hour_value", "point", 1)
    # 13 + 10 against 20 + 5, 12 + 20 and 10 + 40 USD
    middle = advise(HOURS, USD, hour_value_usd=10)
    assert (chosen(middle), runner_up(middle)) == (4, 8)
    assert middle.reason == snapshot
    assert why_not(middle, 8) == snapshot
    assert middle.not_ruled_out == ()
    assert chosen(advise(HOURS, USD, hour_value_usd=100)) == 8
    # efficiency 20% and D 1.2 do not matter
    assert chosen(advise({1: 7200, 8: 4500}, {1: 10, 8: 11}, hour_value_usd=50)) == 8


def test_equal_totals_are_no_reason_to_rent_more():
    answer = advise({1: 7200, 2: 3600}, {1: 10, 2: 14}, hour_value_usd=4)
    assert chosen(answer) == 2  # the faster one of equal totals
    assert [each.answer for each in answer.judged] == ["fail", "pass"]


def test_overlapping_totals_are_not_ruled_out(snapshot):
    times = {1: [7150, 7200, 7250], 2: [3620, 3650, 3680], 4: [1750, 1800, 1900]}
    answer = advise(times, {1: 10, 2: 11, 4: 13}, hour_value_usd=4.3)
    assert (chosen(answer), answer.basis) == (4, "interval")
    assert answer.not_ruled_out == (2,)
    verdict = answer.judged[1].verdicts[-1]
    assert (verdict.criterion, verdict.answer) == ("hour_value", "undecided")
    assert {each.nodes for each in verdict.more_runs} == {2, 4}
    assert answer.reason == snapshot
    assert why_not(answer, 1) == snapshot


def test_an_unknown_cost_may_be_the_least_and_asks(snapshot):
    answer = advise({1: 7200, 2: 3600}, hour_value_usd=4)
    assert (answer.rule, chosen(answer)) == ("hour_value", None)
    assert answer.reason == snapshot
    one = advise({1: 7200, 2: 3600, 4: 1800}, {1: 10, 2: 11}, hour_value_usd=4)
    assert chosen(one) is None
    assert one.reason == snapshot


def test_the_budget_still_applies(snapshot):
    answer = advise(HOURS, USD, hour_value_usd=100, budget_usd_per_run=15)
    assert chosen(answer) == 4
    assert why_not(answer, 8) == snapshot
    none = advise(HOURS, USD, hour_value_usd=100, budget_usd_per_run=5)
    assert chosen(none) is None
    assert none.reason == snapshot


def test_throughput_only_counts_have_no_time_to_wait_for(snapshot):
    loss = {1: 1.0, 2: 1.0, 4: 1.0, 8: 9.0}
    answer = advise(HOURS, USD, loss, hour_value_usd=1000)
    assert chosen(answer) == 4
    assert why_not(answer, 8) == snapshot
    assert [each.nodes for each in hour_value_ranges(rows_of(HOURS, USD, loss))] == [1, 4]
    # 8 nodes are within the budget, too
    loss = {1: 1.0, 2: 9.0, 4: 9.0, 8: 9.0}
    none = advise(HOURS, {**USD, 1: 30}, loss, hour_value_usd=1, budget_usd_per_run=25)
    assert none.reason == snapshot


def advise_contended(times, usd, shares, night_sigma=None, **goals):
    rows = tuple(
        row.model_copy(
            update={"night_sigma": night_sigma}
            | (
                {"flags": (*row.flags, "starved"), "least_time_share": shares[row.nodes]}
                if row.nodes in shares
                else {}
            )
        )
        for row in rows_of(times, usd)
    )
    answer = recommend(rows, RecommendationConfig(**goals))
    assert answer is not None
    return answer


def test_contended_times_are_judged_by_both_ends(snapshot):
    def with_share(share, hour_value_usd):
        return advise_contended(HOURS, USD, {8: share}, hour_value_usd=hour_value_usd)

    # 8 nodes: 20 + 5 = 25 USD against 23, or 20 if it had not been contended
    open_ = with_share(0.8, 10)
    assert (chosen(open_), open_.between) == (None, (4, 8))
    assert open_.reason == snapshot
    assert chosen(with_share(0.95, 10)) == 4
    best = with_share(0.95, 100)
    assert (chosen(best), best.not_ruled_out) == (8, ())
    # 8 nodes: 20 + 50 USD, against 13 + 100 of 4 nodes, or any part of it
    unknown = with_share(None, 100)
    assert (chosen(unknown), unknown.between) == (None, (4, 8))
    assert unknown.reason == snapshot
    # 20 + 0.25 USD against 12 of 1 node: half of it may be the least, 69% of it is not
    assert chosen(with_share(0.5, 0.5)) is None
    known = with_share(0.69, 0.5)
    assert (chosen(known), known.not_ruled_out) == (1, ())
    assert why_not(known, 8) == snapshot
    assert chosen(with_share(None, 0.5)) is None


@pytest.mark.parametrize(
    ("goals", "between"),
    [
        # 2 nodes: 1.20 + 1.00 USD, or 0.72 + 0.60 if they had not been contended
        ({"hour_value_usd": 60, "budget_usd_per_run": 1.1}, (1, 2)),
        ({"hour_value_usd": 60, "budget_usd_per_run": 0.8}, (2,)),
        ({"hour_value_usd": 60, "budget_usd_per_run": 0.7}, ()),
        ({"hour_value_usd": 1, "budget_usd_per_run": 1.1}, (1, 2)),
    ],
)
def test_the_budget_of_a_contended_count_is_judged_by_both_ends(goals, between, snapshot):
    usd = {1: 1.0, 2: 1.2, 4: 2.4}
    answer = advise_contended({1: 100, 2: 60, 4: 59}, usd, {2: 0.6}, **goals)
    assert (chosen(answer), answer.between) == (None, between)
    assert answer.reason == snapshot
    assert why_not(answer, 2) == snapshot


def test_a_count_that_is_open_at_both_ends_for_other_reasons_is_not_ruled_out():
    # 1 node: at most 1.26 times 0.90 to 1.00 USD on another day
    answer = advise_contended(
        {1: 100, 2: 200}, {1: 1.0, 2: 0.8}, {1: 0.9}, 0.1, hour_value_usd=36, budget_usd_per_run=1.1
    )
    assert (chosen(answer), answer.between, answer.not_ruled_out) == (2, (), (1,))
    assert [each.criterion for each in answer.judged[0].verdicts if each.reason] == ["budget"]


@pytest.mark.parametrize(("share", "between"), [(0.97, (2, 4)), (0.995, ())])
def test_an_interval_is_open_due_to_contention_if_the_mean_may_be_the_least(share, between):
    # 2 nodes: 15.36 USD, or 14.90 or 15.28, against 15.17, within the noise
    times = {1: [7150, 7200, 7250], 2: [3620, 3650, 3680], 4: [1750, 1800, 1900]}
    answer = advise_contended(times, {1: 10, 2: 11, 4: 13}, {2: share}, hour_value_usd=4.3)
    assert (chosen(answer), answer.between) == (None if between else 4, between)
    assert answer.not_ruled_out == (2,)


@given(
    st.lists(
        st.tuples(st.floats(10, 1e4), st.floats(1, 100), st.sampled_from([0.5, 0.6, 0.9, 1.0])),
        min_size=2,
        max_size=5,
    ),
    st.floats(1, 1e4),
    st.none() | st.floats(1, 50),
)
def test_only_counts_that_are_best_for_some_possible_times_are_in_question(counts, value, budget):
    """A count is the best for some possible times if it is with its own as short as possible, and
    the others as measured."""
    times = {2**place: seconds for place, (seconds, _, _) in enumerate(counts)}
    usd = {2**place: cost for place, (_, cost, _) in enumerate(counts)}
    shares = {2**place: share for place, (_, _, share) in enumerate(counts) if share < 1}
    totals = [usd[n] + value * times[n] / 3600 for n in times]
    ends = sorted(
        total * share
        for total, n in zip(totals, times, strict=True)
        for share in {1, shares.get(n, 1)}
    )
    assume(all(not math.isclose(low, high) for low, high in pairwise(ends)))
    goals = {"hour_value_usd": value} | ({} if budget is None else {"budget_usd_per_run": budget})

    def best_if(nodes, share):
        there = times | {nodes: times[nodes] * share}, usd | {nodes: usd[nodes] * share}
        return chosen(advise(*there, **goals))

    best = {n for n in times if best_if(n, shares.get(n, 1)) == n}
    is_certain = best_if(1, 1) is not None or not best
    answer = advise_contended(times, usd, shares, **goals)
    if len(best) == 1 and is_certain:
        assert ({chosen(answer)}, answer.between) == (best, ())
    else:
        assert (chosen(answer), answer.between) == (None, tuple(sorted(best)))
