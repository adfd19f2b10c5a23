"""The history: a sweep's rows to Parquet and back, their path in the dataset, and the trend over
sweeps."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pandas import DataFrame
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.trend.history import (
    COLUMNS,
    HISTORY_SCHEMA_VERSION,
    TREND_COLUMNS,
    HistoryError,
    history_frame,
    history_schema,
    parse_history,
    read_history,
    write_history,
)
from nodesweep.scaling.trend.history_render import history_plot, render_history_terminal
from nodesweep.scaling.trend.trend_verdict import judge_trend
from tests.plain import plain

Reports = Callable[..., ScalingReport]
GUIDE = (Path(__file__).resolve().parents[4] / "docs" / "history.md").read_text()
SWEEPS = (
    "bench-20260102030405-0a1b2c3d",
    "bench-20260205030405-0a1b2c3d",
    "bench-20260301030405-0a1b2c3d",
)
# T = 80, 50 s: S(2) = 1.6, E(2) = 0.8
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=4.0)
TIMES = {1: [79.0, 80, 81], 2: [49.0, 50, 51]}


@pytest.fixture
def sweep(make_outcomes: Callable[..., Any], make_report: Reports) -> Reports:
    """Return the report of a sweep that started at its ID's time, as in sweep(SWEEPS[0], {1:
    [times]}, region=…)."""

    def make(sweep_id: str, times: dict[int, Any], **changes: Any) -> ScalingReport:
        given = {"price": changes.pop("price", None)}
        given["provenance"] = changes.pop("provenance", {"dataset_digest": "d" * 64})
        started = datetime.strptime(sweep_id.split("-")[1], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        facts = {
            "created_at": started.isoformat(),
            "image_uri": "training@sha256:" + "a" * 64,
            **changes,
        }
        return make_report(make_outcomes(times, **facts), sweep_id=sweep_id, **given)

    return make


def frames(*reports: ScalingReport) -> list[DataFrame]:
    return [
        parse_history(write_history(history_frame(report), "bench"), report.sweep_id)
        for report in reports
    ]


def arrow(report: ScalingReport) -> pa.Table:
    """Read the file as another program would."""
    return pq.read_table(io.BytesIO(write_history(history_frame(report), "bench")))


def body(table: pa.Table) -> bytes:
    """Return a file that another program wrote."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def terminal(trends: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_history_terminal("bench", trends))
    return console.file.getvalue()  # type: ignore[attr-defined]


def details(trends: Any) -> list[str]:
    """Return the lines below the tables."""
    return [line for line in terminal(trends, 1000).splitlines() if line.startswith("- ")]


def test_every_attempt_is_a_row_that_comes_back(sweep: Reports) -> None:
    report = sweep(
        SWEEPS[0],
        {1: [79.0, 80, 81], 2: [49.0, 50, 51], 4: None},
        given_cost_usd=2.5,
        region="us-east-1",
    )
    table = arrow(report)
    assert table.schema == history_schema("bench")
    assert table.schema.metadata == history_schema("bench").metadata
    [frame] = frames(report)
    assert (
        frame.equals(history_frame(report))
        and str(frame["started_at"].dtype) == "datetime64[ms, UTC]"
    )
    rows = table.to_pylist()
    assert [(row["nodes"], row["repeat"], row["status"], row["used"]) for row in rows] == [
        (1, 1, "Completed", True), (1, 2, "Completed", True), (1, 3, "Completed", True),
        (2, 1, "Completed", True), (2, 2, "Completed", True), (2, 3, "Completed", True),
        (4, 1, "Failed", False),
    ]  # fmt: skip
    row = rows[3]
    assert row["started_at"] == row["created_at"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (row["sweep_id"], row["platform_kind"], row["region"]) == (SWEEPS[0], "aws", "us-east-1")
    assert (row["train_seconds"], row["run_usd"], row["baseline_nodes"]) == (49.0, 2.5, 1)
    assert (row["speedup"], row["efficiency"], row["doubling_ratio"]) == pytest.approx(
        (1.6, 0.8, 1.6), rel=1e-3
    )
    assert (
        row["speedup_low"] < 1.6 < row["speedup_high"]
        and row["efficiency_low"] < 0.8 < row["efficiency_high"]
    )
    assert rows[6]["speedup"] is rows[6]["train_seconds"] is None
    assert rows[6]["reason"] == "AlgorithmError: boom"


def test_final_metric_is_kept_by_name(sweep: Reports) -> None:
    metric = {"name": "val_accuracy", "value": 0.9, "goal": "maximize"}
    row = arrow(sweep(SWEEPS[0], {1: 80.0}, metrics={"final_metric": metric})).to_pylist()[0]
    assert (row["final_metric_name"], row["final_metric_value"]) == ("val_accuracy", 0.9)


def test_spot_run_keeps_its_time_and_is_not_used(
    sweep: Reports, make_outcome: Any, make_report: Reports
) -> None:
    outcomes = [
        make_outcome(1, 80.0),
        make_outcome(1, 85.0, 2, spot=True),
        make_outcome(1, 90.0, 3, spot=True, train_clock="measured"),
    ]
    rows = arrow(make_report(outcomes)).to_pylist()
    # the clock is that of the on-demand run; the third run has no time on it
    assert [row["train_seconds"] for row in rows] == [80.0, 85.0, None]
    rows = arrow(make_report(outcomes[:2])).to_pylist()
    assert [(row["train_seconds"], row["used"], row["spot"]) for row in rows] == [
        (80.0, True, False), (85.0, False, True),
    ]  # fmt: skip


def test_sweep_without_a_known_start_is_placed_by_its_report(
    make_outcome: Any, make_report: Reports
) -> None:
    [frame] = frames(make_report([make_outcome(1, 80.0)]))
    assert list(frame["started_at"].isna()) == [True]
    [trend] = read_history([frame])
    assert trend.points["at"][0] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_times_are_utc_whatever_their_offset(sweep: Reports) -> None:
    for text in ("2026-01-02T04:00:00+01:00", "2026-01-02T03:00:00"):
        [row] = arrow(sweep(SWEEPS[0], {1: 80.0}, created_at=text)).to_pylist()
        assert row["created_at"] == datetime(2026, 1, 2, 3, tzinfo=UTC)


def test_file_says_its_schema_version(sweep: Reports) -> None:
    metadata = arrow(sweep(SWEEPS[0], TIMES)).schema.metadata
    assert (
        metadata[b"nodesweep.history_schema_version"] == b"1"
        and metadata[b"nodesweep.benchmark"] == b"bench"
    )


def test_dataset_reads_as_one_table_with_the_benchmark_as_partition(
    sweep: Reports, tmp_path: Path
) -> None:
    """pyarrow reads the dataset as Athena and DuckDB do."""
    for benchmark, sweep_id in zip(("bench", "bench", "other"), SWEEPS, strict=True):
        report = sweep(sweep_id, TIMES)
        path = tmp_path / names.history_key(
            "nodesweep", benchmark, report.sweep_id, HISTORY_SCHEMA_VERSION
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(write_history(history_frame(report), benchmark))
    dataset = ds.dataset(tmp_path / "nodesweep" / "history" / "v1", partitioning="hive")
    assert dataset.schema.names == [*history_schema("bench").names, "benchmark"]
    found = dataset.to_table(filter=(ds.field("benchmark") == "bench") & (ds.field("nodes") == 2))
    assert found.num_rows == 6
    assert set(found.column("sweep_id").to_pylist()) == set(SWEEPS[:2])
    # Athena refuses a partition that is a column too
    assert "benchmark" not in history_schema("bench").names


def test_trend_has_a_point_per_sweep_and_count_by_date(sweep: Reports) -> None:
    slower = sweep(SWEEPS[1], {1: [80.0], 2: [64.0]}, given_cost_usd=3.0)
    [trend] = read_history(frames(slower, sweep(SWEEPS[0], TIMES)))
    assert trend.sweeps == SWEEPS[:2]
    assert list(trend.points) == list(TREND_COLUMNS)
    shown = trend.points[["sweep_id", "nodes", "n", "train_seconds", "speedup", "total_usd"]]
    assert shown.round(3).astype(object).fillna("NA").to_numpy().tolist() == [
        [SWEEPS[0], 1, 3, 80.0, 1.0, "NA"], [SWEEPS[1], 1, 1, 80.0, 1.0, 3.0],
        [SWEEPS[0], 2, 3, 50.0, 1.6, "NA"], [SWEEPS[1], 2, 1, 64.0, 1.25, 3.0],
    ]  # fmt: skip
    assert list(trend.points["speedup_low"].notna()) == [False, False, True, False]
    assert trend.points["train_seconds_of_runs"][2] == [49.0, 50.0, 51.0]
    assert list(trend.at_nodes(2).points["train_seconds"]) == [50.0, 64.0]


def test_cost_of_the_trend_has_the_warm_pool(sweep: Reports) -> None:
    pool = {"given_cost_usd": 3.0, "retained_billable_seconds": 1800.0}
    [trend] = read_history(frames(sweep(SWEEPS[0], {1: [80.0] * 3}, **pool)))
    assert trend.points["total_usd"][0] == 3.0  # without a price the pool's cost is not known
    [trend] = read_history(frames(sweep(SWEEPS[0], {1: [80.0] * 3}, price=PRICE, **pool)))
    assert trend.points["total_usd"][0] == pytest.approx(3.0 + 0.5 * 4.0)


def test_failed_counts_are_rows_but_no_trend(sweep: Reports) -> None:
    assert read_history(frames(sweep(SWEEPS[0], {1: None}))) == ()
    assert read_history([]) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"platform_kind": "emulated"},
        {"instance_type": "ml.p3.2xlarge"},
        {"region": "eu-west-1"},
        {"launcher": "mpi"},
        {"batch_policy": "fixed_global"},
        {"provenance": {"dataset_digest": "e" * 64}},
    ],
)
def test_sweeps_of_other_conditions_never_share_a_trend(
    sweep: Reports, change: dict[str, Any]
) -> None:
    trends = read_history(frames(sweep(SWEEPS[0], TIMES), sweep(SWEEPS[1], TIMES, **change)))
    assert [trend.sweeps for trend in trends] == [(SWEEPS[1],), (SWEEPS[0],)]  # the youngest first


def test_sweep_without_its_baseline_is_in_the_trend_without_speedups(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    times = {1: [80.0] * 3, 2: [50.0] * 3, 4: [25.0] * 3}
    lost = sweep(SWEEPS[1], {1: None, 2: [75.0] * 3, 4: [37.5] * 3})
    trends = read_history(frames(sweep(SWEEPS[0], times), lost))
    [trend] = trends
    assert (trend.sweeps, trend.baseline_nodes) == (SWEEPS[:2], 1)
    two = trend.points[trend.points["nodes"] == 2]
    assert list(two["train_seconds"]) == [50.0, 75.0]
    assert list(two["speedup"].fillna(0.0)) == [1.6, 0.0]
    assert list(two["baseline_nodes"]) == [1, 2]
    assert plain(terminal(trends), digest=trend.conditions_digest[:12]) == snapshot


def test_night_without_its_baseline_alarms_at_all_counts(sweep: Reports) -> None:
    """The baseline alarms because it is lost, the other counts because they are 50% slower."""
    reports = [
        sweep(f"bench-202601{day:02}030405-0a1b2c3d", {1: [80.0] * 3, 2: [50.0] * 3})
        for day in range(1, 9)
    ]
    tonight = sweep("bench-20260109030405-0a1b2c3d", {1: None, 2: [75.0] * 3})
    [trend] = read_history(frames(*reports, tonight))
    made = judge_trend(trend, 0.05)
    assert [(each.nodes, each.verdict) for each in made.counts] == [(1, "lost"), (2, "slower")]


def test_newest_sweep_without_a_run_is_lost_in_the_trend_of_its_conditions(sweep: Reports) -> None:
    """A failed sweep reports no train clock, so its conditions only must not contradict."""
    failed = {1: None, 2: None}
    emulated = {"platform_kind": "emulated", "instance_type": "ml.local.small"}
    other = sweep(SWEEPS[1], TIMES, **emulated)
    trends = read_history(frames(sweep(SWEEPS[0], TIMES), other, sweep(SWEEPS[2], failed)))
    assert [(trend.sweeps, trend.failed_sweep) for trend in trends] == [
        ((SWEEPS[0],), SWEEPS[2]), ((SWEEPS[1],), None),
    ]  # fmt: skip
    made = judge_trend(trends[0], 0.05)
    assert (made.sweep_id, made.alarms) == (SWEEPS[2], (1, 2))
    assert judge_trend(trends[0], 0.05, sweep=SWEEPS[0]).alarms == ()
    for reports in (
        (sweep(SWEEPS[0], failed), sweep(SWEEPS[1], TIMES)),  # not the newest
        (sweep(SWEEPS[0], TIMES), sweep(SWEEPS[1], failed, **emulated)),
    ):
        [trend] = read_history(frames(*reports))
        assert trend.failed_sweep is None


def test_contended_count_is_marked(
    make_outcome: Any, make_report: Reports, snapshot: SnapshotAssertion
) -> None:
    emulated = {"platform_kind": "emulated", "instance_type": "ml.local.small"}
    outcomes = [
        make_outcome(1, 80.0, **emulated),
        make_outcome(2, 90.0, utilisation={"attained_percent": 40.0}, **emulated),
    ]
    trends = read_history([history_frame(make_report(outcomes))])
    assert list(trends[0].points["contended"]) == [False, True]
    assert details(trends) == snapshot


def test_new_image_and_code_stay_in_the_trend_and_are_marked(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    code = {"dataset_digest": "d" * 64, "source_uri": "s3://b/code/99/sourcedir.tar.gz"}
    later = sweep(SWEEPS[1], TIMES, image_uri="training@sha256:" + "b" * 64, provenance=code)
    trends = read_history(
        frames(sweep(SWEEPS[0], TIMES), later, sweep(SWEEPS[2], TIMES, image_uri=None))
    )
    assert [trend.sweeps for trend in trends] == [SWEEPS]
    assert details(trends) == snapshot


def test_tables_say_the_platform_and_keep_kinds_apart(
    sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    emulated = sweep(SWEEPS[1], TIMES, platform_kind="emulated", instance_type="ml.local.small")
    trends = read_history(frames(sweep(SWEEPS[0], TIMES), emulated))
    assert [trend.platform.kind for trend in trends] == ["emulated", "aws"]
    digests = {trend.platform.kind: trend.conditions_digest[:12] for trend in trends}
    assert plain(terminal(trends), **digests) == snapshot


def test_plot_shows_trends_of_two_sweeps_or_more_with_their_platform(sweep: Reports) -> None:
    without_baseline = sweep(SWEEPS[1], TIMES | {1: None}, given_cost_usd=2.0)
    trends = read_history(frames(
        sweep(SWEEPS[0], TIMES, given_cost_usd=2.0), without_baseline,
        sweep(SWEEPS[2], TIMES, platform_kind="emulated", instance_type="ml.$local$"),
    ))  # fmt: skip
    svg = (history_plot("bench", trends, "svg") or b"").decode()
    assert "(AWS, ml.m5.xlarge)" in svg
    assert "emulated" not in svg and "unknown" not in svg
    assert svg == (history_plot("bench", trends, "svg") or b"").decode()  # no date, no random ids


def test_dollar_signs_are_text_and_unknown_costs_are_said_in_the_plot(sweep: Reports) -> None:
    trends = read_history(
        frames(*(sweep(name, TIMES, instance_type="ml.$local$") for name in SWEEPS))
    )
    svg = (history_plot("bench", trends, "svg") or b"").decode()
    assert "(AWS, ml.$local$)" in svg
    assert "unknown" in svg


def test_one_sweep_is_no_plot(sweep: Reports) -> None:
    assert history_plot("bench", read_history(frames(sweep(SWEEPS[0], TIMES))), "svg") is None


def test_a_columns_sql_type_is_that_of_the_file() -> None:
    types = {pa.string(): "string", pa.int32(): "int", pa.float64(): "double",
             pa.bool_(): "boolean",
             pa.timestamp("ms", tz="UTC"): "timestamp"}  # fmt: skip
    assert [types[column.type] for column in COLUMNS] == [column.sql for column in COLUMNS]


def ending(make_outcome: Any, nodes: int, seconds: float, accuracy: float) -> Any:
    metric = {"name": "val_accuracy", "value": accuracy, "goal": "maximize"}
    return make_outcome(nodes, seconds, metrics={"final_metric": metric})


def test_row_has_parity_flags_and_the_price(make_outcome: Any, make_report: Reports) -> None:
    price = Price(
        instance_type="ml.m5.xlarge", usd_per_hour=0.23, source="catalogue", date="2026-01-01"
    )
    outcomes = [
        ending(make_outcome, 1, 80.0, 0.9),
        ending(make_outcome, 2, 30.0, 0.5),  # E = 80/30/2 > 1
        ending(make_outcome, 4, 25.0, 0.9),
        make_outcome(8, None),
    ]
    rows = arrow(make_report(outcomes, price=price)).to_pylist()
    assert [(row["nodes"], row["parity"], row["flags"]) for row in rows] == [
        (1, "baseline", ""), (2, "different", "superlinear+throughput_only"), (4, "same", ""),
        (8, "unknown", None),
    ]  # fmt: skip
    assert {
        (row["price_usd_per_hour"], row["price_date"], row["price_source"]) for row in rows
    } == {(0.23, "2026-01-01", "catalogue")}


def test_speedup_of_another_model_is_marked_in_the_trend(
    make_outcome: Any, make_report: Reports, snapshot: SnapshotAssertion
) -> None:
    outcomes = [ending(make_outcome, 1, 80.0, 0.9), ending(make_outcome, 2, 50.0, 0.5)]
    trends = read_history([history_frame(make_report(outcomes))])
    assert list(trends[0].points["throughput_only"]) == [False, True]
    text = " ".join(terminal(trends).split())
    assert "1.0x 100%" in text and "1.6x* 80%" in text
    assert details(trends) == snapshot


def test_speedup_of_the_same_model_has_no_mark(sweep: Reports) -> None:
    assert "*" not in terminal(read_history(frames(sweep(SWEEPS[0], TIMES))))


def newer(table: pa.Table) -> bytes:
    return body(table.replace_schema_metadata({"nodesweep.history_schema_version": "2"}))


def without_version(table: pa.Table) -> bytes:
    return body(table.replace_schema_metadata(None))


def cut(table: pa.Table) -> bytes:
    return body(table)[:-9]


def without_flags(table: pa.Table) -> bytes:
    return body(table.drop_columns(["flags"]))


def counts_as_text(table: pa.Table) -> bytes:
    at = table.column_names.index("nodes")
    return body(table.set_column(at, "nodes", pa.array(["many"] * len(table))))


def without_times(table: pa.Table) -> bytes:
    at = table.column_names.index("train_seconds")
    unknown = pa.array([None] * len(table), pa.float64())
    return body(table.set_column(at, table.schema.field(at), unknown))


@pytest.mark.parametrize(
    "damage", [newer, without_version, cut, without_flags, counts_as_text, without_times]
)
def test_damaged_files_and_those_of_another_version_are_refused(
    damage: Callable[[pa.Table], bytes], sweep: Reports, snapshot: SnapshotAssertion
) -> None:
    damaged = damage(arrow(sweep(SWEEPS[0], TIMES)))
    with pytest.raises(HistoryError) as refused:
        parse_history(damaged, "s3://b/k")
    # pyarrow's own words, in brackets, differ between its versions
    assert re.sub(r" \(.*\)", " (<pyarrow>)", str(refused.value)) == snapshot


def test_guides_queries_keep_the_platforms_apart() -> None:
    queries = re.findall(r"```sql\n(SELECT .*?)```", GUIDE, re.DOTALL)
    assert len(queries) == 2
    assert all("platform_kind = 'aws'" in query for query in queries)
