"""The tables as text: their columns, cells and links."""

from __future__ import annotations

import pytest

from nodesweep.scaling import names
from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.fits.fit import fit_laws
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.facts import costs_text, provenance_facts, sweep_facts
from nodesweep.scaling.report.table import Table
from nodesweep.scaling.report.tables.attempts import (
    attempt_links,
    attempts_table,
    console_url,
)
from nodesweep.scaling.report.tables.cells import MAX_NODE_COUNTS_SHOWN
from nodesweep.scaling.report.tables.costs import costs_table
from nodesweep.scaling.report.tables.fits import (
    extrapolation_text,
    fits_table,
    law_line,
    law_verdict,
)
from nodesweep.scaling.report.tables.summary import (
    clocks_table,
    compact_table,
    main_links,
    main_table,
    parity_lines,
    summary_caption,
)

PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=3.6, source="a list", date="2026-01-01")


def column(table: Table, heading: str) -> list[str]:
    return [cell.replace("\n", " ") for cell in table.cells[heading]]


def headings(table: Table) -> list[str]:
    return list(table.cells)


def cells(table: Table, row: int) -> list[str]:
    return list(table.cells.iloc[row])


def test_main_table_has_the_columns_of_the_methodology(make_outcome, make_report, snapshot):
    def run(nodes: int, seconds: float):
        return make_outcome(
            nodes,
            seconds,
            world_size=8 * nodes,
            global_batch_size=4096,
            per_replica_batch_size=512 // nodes,
            learning_rate=0.1,
            clocks=Clocks(train_seconds=seconds, billable_seconds=seconds, steady_step_seconds=0.5),
            phases={"Starting": 30.0},
            metrics={
                "final_metric": {"name": "accuracy", "value": 0.9, "goal": None},
                "epochs": 2,
                "data_wait_share": 0.1,
            },
        )

    table = main_table(make_report([run(1, 100.0), run(2, 60.0)], price=PRICE))
    assert headings(table) == [
        *("N", "n", "T", "S", "E", "D", "e", "cost", "cost/epoch", "limits", "status"),
        *("world", "B", "b", "lr", "step", "start-up", "data wait", "accuracy", "T from"),
    ]
    assert cells(table, 1) == [
        *("2", "1", "1 min 0 s", "1.7x", "83%", "1.67", "0.2", "$0.1200", "$0.0600", "pass", "ok"),
        *("16", "4,096", "256", "0.1", "500 ms", "30.0 s", "10%", "0.9", "metrics.json"),
    ]
    assert column(table, "S") == ["Baseline", "1.7x"]
    assert table.caption == snapshot


def test_columns_nobody_knows_are_left_out(make_outcomes, make_report):
    table = main_table(make_report(make_outcomes({1: 40, 2: 21})))
    assert headings(table) == ["N", "n", "T", "S", "E", "D", "e", "limits", "status", "T from"]


def test_efficiency_against_one_process_is_shown_where_nodes_have_several(
    make_outcome, make_report
):
    outcomes = [make_outcome(1, 100.0, world_size=1), make_outcome(2, 20.0, world_size=8)]
    assert column(main_table(make_report(outcomes)), "E/process") == ["–", "62%"]


def test_intervals_stand_beside_their_value(make_outcomes, make_report, snapshot):
    table = main_table(make_report(make_outcomes({1: [40, 41, 42], 2: [20, 20.5, 21]})))
    assert column(table, "T") == [
        "41.0 s [38.6 s, 43.6 s]",
        "20.5 s [19.3 s, 21.8 s]",
    ]
    assert column(table, "S") == ["Baseline", "2.0x [1.9x, 2.1x]"]
    assert column(table, "E")[1] == "100% [95%, 106%]"
    assert table.caption == snapshot


def test_a_caption_explains_levels_only_where_a_cell_shows_one(
    make_outcomes, make_report, snapshot
):
    report = make_report(
        make_outcomes({1: [40, 41, 42, 43, 44, 45], 2: [20, 20.5, 21, 21.5, 22, 22.5]})
    )
    assert main_table(report).caption == snapshot


def test_a_row_links_to_its_runs_as_far_as_they_are_shown(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [40.0] * 200, 2: 21}))
    assert main_links(report) == ["#run-1", None]
    assert list(attempts_table(report).cells.index[:2]) == ["run-1", "run-2"]


def test_times_per_sample_say_so(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: 0.002, 2: 0.0011}, train_clock="throughput"))
    for table in (main_table(report), compact_table(report)):
        assert column(table, "time per sample") == ["2 ms", "1.1 ms"]
        assert "T" not in headings(table)
    assert column(attempts_table(report), "time per sample") == ["2 ms", "1.1 ms"]
    assert summary_caption(report) == snapshot
    assert column(clocks_table(report), "clock")[0] == snapshot(name="clock")


def test_status_tells_failed_spot_and_flags(make_outcomes, make_outcome, make_report, snapshot):
    outcomes = [
        *make_outcomes({1: 40, 2: 50}),
        make_outcome(2, repeat=2),
        make_outcome(2, 9.0, repeat=3, spot=True),
        make_outcome(4),
    ]
    report = make_report(outcomes)
    assert column(main_table(report), "status") == snapshot(name="of node counts")
    assert column(attempts_table(report), "status") == snapshot(name="of runs")


def test_the_caption_names_the_baseline_or_why_there_is_none(
    make_outcomes, make_outcome, make_report, snapshot
):
    on_spot = make_outcomes({1: 40}, spot=True)
    untimed = make_outcome(2, 40.0, clocks=Clocks(train_seconds=None), train_clock=None)
    sweeps = {
        "relative": make_outcomes({2: 40, 4: 21}),
        "none completed": [make_outcome(1)],
        "all on spot": [*on_spot, make_outcome(2)],
        "none timed": [*on_spot, untimed],
    }
    captions = {name: summary_caption(make_report(runs)) for name, runs in sweeps.items()}
    assert captions == snapshot


def test_each_clock_has_rows_of_its_own(make_outcome, make_report, snapshot):
    clocks = Clocks(train_seconds=40, billable_seconds=50)
    report = make_report([make_outcome(1, 40.0, clocks=clocks), make_outcome(2, 20.0)])
    table = clocks_table(report)
    assert column(table, "clock") == snapshot(name="clocks")
    assert column(table, "T") == ["40.0 s", "20.0 s", "50.0 s"]
    assert column(table, "D") == ["–", "2.00", "–"]
    assert column(table, "e") == ["–", "0", "–"]
    assert table.meanings["e"] == main_table(report).meanings["e"] == snapshot(name="meaning of e")


def test_costs_are_listed_with_the_price_and_its_source(make_outcome, make_report, snapshot):
    clocks = Clocks(train_seconds=90, billable_seconds=100)
    report = make_report(
        [make_outcome(2, 90.0, clocks=clocks, retained_billable_seconds=50.0)], price=PRICE
    )
    table = costs_table(report)
    assert headings(table) == [
        "N",
        "run",
        "on demand",
        "warm pool",
        "total",
        "billable",
        "node-hours",
    ]
    shown = ["2", "$0.2000", "$0.2000", "$0.1000", "$0.3000", "1 min 40 s", "0.05"]
    assert cells(table, 0) == shown
    assert (table.caption, costs_text(report)) == snapshot


def test_unknown_costs_make_no_table(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}))
    assert (costs_table(report), costs_text(report)) == (None, None)


def test_the_validation_of_the_dataset_is_told_beside_the_jobs(
    make_outcomes, make_report, snapshot
):
    provenance = {"dataset_validation": {"engine": "spark", "usd": 1.25}}
    report = make_report(make_outcomes({1: 40, 2: 21}), provenance=provenance)
    assert report.costs.validation_usd == 1.25
    assert costs_text(report) == snapshot
    assert report.model_dump(mode="json")["costs"]["validation_usd"] == 1.25
    without = make_report(make_outcomes({1: 40, 2: 21}))
    assert "validation_usd" not in without.model_dump(mode="json")["costs"]
    assert ("dataset_validation.engine", "spark") in provenance_facts(report)


def test_attempts_without_a_cost_are_counted(make_outcomes, make_outcome, make_report, snapshot):
    known = make_outcome(1, 40.0, clocks=Clocks(train_seconds=40, billable_seconds=100))
    report = make_report(
        [known, *make_outcomes({2: 21})],
        price=PRICE,
        provenance={"dataset_validation": {"usd": 2.0}},
    )
    assert costs_text(report) == snapshot


def test_laws_are_told_with_their_verdicts(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: 100, 2: 60, 4: 40}))
    table = fits_table(report)
    law = report.fits.laws[0]
    assert column(table, "law")[0] == law.law
    assert f"({law.identifiable.reason})" in law_verdict(law)
    assert (law_verdict(law), law_line(law)) == snapshot(name="law")
    assert column(table, "95% interval") == snapshot(name="intervals")
    assert extrapolation_text(report) == snapshot(name="extrapolation")


def test_the_peak_of_a_law_is_told(snapshot):
    times = [
        (n, 100 * (1 + 0.02 * (n - 1) + 0.01 * n * (n - 1)) / n * (1.001 if n % 3 else 0.999))
        for n in range(1, 9)
    ]
    law = next(fit for fit in fit_laws(times, None).laws if fit.law == "usl")
    assert f"{law.peak_nodes:.3g} nodes" in law_line(law)
    assert law_line(law) == snapshot


@pytest.mark.parametrize(
    ("clock", "scale"), [("program", 1), ("throughput", 1e-4)], ids=["time", "rate"]
)
def test_a_supported_extrapolation_is_told(clock, scale, make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: 100 * scale, 2: 60 * scale}, train_clock=clock))
    beyond = report.fits.extrapolation
    supported = beyond.model_copy(
        update={
            "train_seconds": 6.5 * scale,
            "interval": Interval(low=6.2 * scale, high=6.8 * scale),
            "assumes": "This assumes a network.",
            "supported": beyond.supported.model_copy(update={"value": True, "reason": "why"}),
        }
    )
    changed = report.model_copy(
        update={"fits": report.fits.model_copy(update={"extrapolation": supported})}
    )
    assert extrapolation_text(changed) == snapshot


def test_nothing_fitted_is_told(make_outcome, make_report, snapshot):
    report = make_report([make_outcome(1)])
    assert fits_table(report) is None
    assert extrapolation_text(report) == snapshot


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("us-east-1", "us-east-1.console.aws.amazon.com"),
        ("cn-north-1", "cn-north-1.console.amazonaws.cn"),
        ("us-gov-west-1", "us-gov-west-1.console.amazonaws-us-gov.com"),
    ],
)
def test_jobs_on_aws_link_to_the_console(region, host, make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40}, region=region, job_name="a b"))
    assert (
        console_url(report, report.points[0])
        == f"https://{host}/sagemaker/home?region={region}#/jobs/a%20b"
    )


def test_a_run_links_to_its_kept_log(make_outcomes, make_outcome, make_report, snapshot):
    outcomes = [*make_outcomes({1: 40.0, 2: 20.0}), make_outcome(4, reason="boom")]
    report = make_report(outcomes)
    assert "log" not in headings(attempts_table(report))
    files = ["n2-r1-a1-ab12_algo-2.log", "n2-r1-a1-ab12_algo-1.log", "of-another.log"]
    logs = [names.log_link(file) for file in files]
    assert column(attempts_table(report, logs), "log") == snapshot
    links = attempt_links(report, logs)["log"]
    assert links == [None, "logs/n2-r1-a1-ab12_algo-1.log", None]


def test_the_log_of_the_lines_shown_comes_first(make_outcome, make_report):
    """The node that failed first can be a different one, because mpirun's log has all lines."""
    logs = [names.log_link(f"n4-r1-a1-ab12_algo-{node}.log") for node in (1, 2, 3)]
    for host in ("algo-2", "algo-3"):
        failed = make_outcome(4, failed_host=host, log_tail=("algo-2: boom",))
        links = attempt_links(make_report([failed]), logs)["log"]
        assert links == ["logs/n4-r1-a1-ab12_algo-2.log"]


def test_other_platforms_have_no_console(make_outcomes, make_report):
    for given in ({"platform_kind": "emulated", "region": "us-east-1"}, {"region": None}):
        report = make_report(make_outcomes({1: 40}, **given))
        assert console_url(report, report.points[0]) is None


def test_facts_say_when_and_on_what(make_outcomes, make_report, snapshot):
    outcomes = [
        *make_outcomes({1: [40, 41, 42]}, created_at="2026-01-01T10:00:00+00:00"),
        *make_outcomes({2: 21}, created_at="2026-01-01T11:00:00+00:00"),
    ]
    report = make_report(
        outcomes, provenance={"a": {"b": [1, 2]}, "none": None, "type": "ml.m5.xlarge"}
    )
    assert dict(sweep_facts(report)) == snapshot
    assert provenance_facts(report) == [("a.b", "1, 2"), ("none", "–")]


def test_isolation_and_an_unknown_price_are_facts(make_outcomes, make_report, snapshot):
    facts = dict(
        sweep_facts(
            make_report(make_outcomes({1: 40}, platform_kind="emulated", isolation="0.2 vCPU"))
        )
    )
    assert facts["isolation"] == "0.2 vCPU"
    assert facts["price"] == snapshot


def test_metrics_of_several_names_keep_theirs(make_outcome, make_report):
    def run(nodes: int, name: str | None):
        return make_outcome(
            nodes, 40.0, metrics={"final_metric": {"name": name, "value": 0.9, "goal": None}}
        )

    report = make_report([run(1, "accuracy"), run(2, "loss"), run(4, None), make_outcome(8, 40.0)])
    assert column(main_table(report), "final metric") == ["accuracy 0.9", "loss 0.9", "0.9", "–"]


def test_node_hours_need_whole_runs(make_outcomes, make_report):
    clocks = Clocks(train_seconds=0.002, billable_seconds=100)
    report = make_report(
        make_outcomes({1: 0.002}, train_clock="throughput", clocks=clocks), price=PRICE
    )
    assert "node-hours" not in headings(costs_table(report))


def test_a_cut_table_keeps_the_baseline_the_recommended_and_the_last_count(
    make_outcomes, make_outcome, make_report, snapshot
):
    """150 counts of which the first failed; 138 is recommended, since all above it are slower."""
    times = {nodes: 1e4 / nodes if nodes <= 138 else 1e4 for nodes in range(2, 151)}
    report = make_report([make_outcome(1), *make_outcomes(times)])
    assert (report.baseline.nodes, report.recommendation.chosen.nodes) == (2, 138)
    for table in (main_table(report), compact_table(report)):
        counts = [int(count) for count in column(table, "N")]
        assert len(counts) == MAX_NODE_COUNTS_SHOWN and counts == sorted(set(counts))
        assert {1, 2, 138, 150} <= set(counts)
    assert clocks_table(report).caption == snapshot


def test_a_cut_table_without_a_result_has_its_ends(make_outcome, make_report):
    counts = column(main_table(make_report([make_outcome(nodes) for nodes in range(1, 131)])), "N")
    assert (len(counts), counts[0], counts[-1]) == (MAX_NODE_COUNTS_SHOWN, "1", "130")


def test_a_cut_table_without_an_answer_has_its_ends(make_outcomes, make_report):
    starved = {"attained_percent": 40.0}
    times = {nodes: 1e4 / nodes for nodes in range(1, 131)}
    report = make_report(make_outcomes(times, utilisation=starved))
    assert report.recommendation.chosen is None
    counts = column(main_table(report), "N")
    assert (len(counts), counts[0], counts[-1]) == (MAX_NODE_COUNTS_SHOWN, "1", "130")


def test_given_costs_are_called_so(make_outcome, make_report, snapshot):
    report = make_report(read_measured("nodes,train_seconds,cost_usd\n1,40,2\n2,21,2.2\n"))
    origin = costs_table(report).meanings["run"]
    assert attempts_table(report).meanings["cost"] == origin == snapshot(name="given")
    assert costs_table(report).caption == snapshot(name="caption")
    clocks = Clocks(train_seconds=40, billable_seconds=50)
    mixed = make_report(
        [make_outcome(1, 40.0, clocks=clocks), make_outcome(2, 21.0, given_cost_usd=1.0)],
        price=PRICE,
    )
    assert costs_table(mixed).meanings["run"] == snapshot(name="mixed")


def test_fits_of_rates_are_per_sample(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: 0.002, 2: 0.0011, 4: 0.0006}, train_clock="throughput"))
    assert fits_table(report).caption == snapshot
    assert column(fits_table(report), "value")[0].endswith(" ms per sample")


def test_a_verdict_on_the_final_metric_is_told_where_it_is_not_plain(
    make_outcome, make_report, snapshot
):
    def run(nodes: int, value: float):
        return make_outcome(
            nodes, 40 / nodes, metrics={"final_metric": {"name": "a", "value": value, "goal": None}}
        )

    report = make_report([run(1, 0.9), run(2, 0.5), run(4, 0.9)])
    [line] = parity_lines(report)
    assert f"({report.summary[1].parity.reason})" in line
    reached = report.summary[2].parity.model_copy(
        update={"verdict": "reached_target", "reason": "why"}
    )
    rows = (*report.summary[:2], report.summary[2].model_copy(update={"parity": reached}))
    lines = parity_lines(report.model_copy(update={"summary": rows}))
    assert lines[0] == line
    assert lines == snapshot
    assert (
        parity_lines(make_report([make_outcome(1, 40.0), make_outcome(2, 21.0), make_outcome(4)]))
        == []
    )


def test_a_warm_pool_adds_the_total_that_a_choice_is_judged_by(make_outcome, make_report):
    clocks = Clocks(train_seconds=40, billable_seconds=3600)
    price = Price(instance_type="ml.m5.xlarge", usd_per_hour=2)
    without = make_report([make_outcome(1, 40, clocks=clocks)], price=price)
    assert "total" not in headings(costs_table(without))
    kept = costs_table(
        make_report(
            [make_outcome(1, 40, clocks=clocks, retained_billable_seconds=1800.0)], price=price
        )
    )
    assert [column(kept, heading) for heading in ("run", "warm pool", "total")] == [
        ["$2.00"],
        ["$1.00"],
        ["$3.00"],
    ]


def test_costs_have_an_interval_the_next_run_and_what_a_result_costs(make_outcome, make_report):
    outcomes = [
        make_outcome(n, 40.0 / n, repeat, given_cost_usd=usd)
        for n, costs in {1: (10.0, 11.0, 12.0), 2: (10.0, 10.0, 10.0)}.items()
        for repeat, usd in enumerate(costs, start=1)
    ]
    failed = make_outcome(2, repeat=4, given_cost_usd=6.0, created_at="2026-01-02T03:04:05+00:00")
    table = costs_table(make_report([*outcomes, failed]))
    assert column(table, "run") == [
        "$10.97 [$8.75, $13.76]",
        "$10.00 [$10.00, $10.00]",
    ]
    assert column(table, "next run") == ["$14.92", "$10.00"]
    assert column(table, "per result") == ["–", "$12.00"]
    assert table.meanings["total"].endswith(
        "the cost that the recommendation uses if no attempt failed"
    )
    assert costs_table(make_report(outcomes)).meanings["total"].endswith("recommendation uses")


@pytest.mark.parametrize("name", ["N", "cost", "T from"])
def test_a_metric_named_like_a_column_gets_a_column_of_its_own(name, make_outcome, make_report):
    metrics = {"final_metric": {"name": name, "value": 0.9, "goal": None}}
    report = make_report([make_outcome(1, 40.0, metrics=metrics)])
    for table in (main_table(report), attempts_table(report)):
        assert column(table, "final metric") == [f"{name} 0.9"]
        assert column(table, "N") == ["1"]
