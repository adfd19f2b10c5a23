"""A file of measured times on disk: refusals before it is read, its price, and the path of its
report."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.commands.table import read_measured_file, report_table
from nodesweep.cli.main import main
from nodesweep.scaling.measured.table import MeasuredTableError
from tests.plain import plain

pytestmark = pytest.mark.usefixtures("without_plots")
TABLE = """\
nodes,train_seconds,billable_seconds,instance_type
1,3600,3600,ml.p3.16xlarge
2,1800,1800,ml.p3.16xlarge
"""


def refusal(path: Path, region: str | None = None) -> str:
    with pytest.raises(MeasuredTableError) as caught:
        report_table(path, path.parent / "reports", region)
    assert not (path.parent / "reports").exists()
    return str(caught.value)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "times.csv").write_text(TABLE)
    return tmp_path / "times.csv"


def test_a_page_to_share_is_written_where_it_is_asked_for(table: Path, tmp_path: Path) -> None:
    command = ["report", "--csv", str(table), "--output", str(tmp_path / "reports")]
    alone = CliRunner().invoke(main, command)
    assert alone.exit_code == 0 and "share.html" not in alone.stdout
    shared = CliRunner().invoke(main, [*command, "--share"])
    assert shared.exit_code == 0, shared.output
    [path] = [Path(word) for word in shared.stdout.split() if word.endswith("/share.html")]
    assert path.read_text() != (path.parent / "report.html").read_text()


def test_a_directory_and_a_missing_file_are_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "folder.csv").mkdir()
    assert plain(refusal(tmp_path / "folder.csv"), folder=tmp_path) == snapshot
    assert plain(refusal(tmp_path / "nowhere.csv"), folder=tmp_path) == snapshot


def test_an_unreadable_file_is_refused(
    table: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    def denied(*_: object, **__: object) -> None:
        # Root may read everything, so it is raised here.
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(MeasuredTableError) as refused:
        read_measured_file(table)
    assert plain(refused.value, table=table) == snapshot


def test_a_name_with_control_characters_does_not_reach_the_message(tmp_path: Path) -> None:
    message = refusal(tmp_path / "\x1b[2Jnowhere\udcff.csv")
    assert "?[2Jnowhere?.csv" in message and "\x1b" not in message


@pytest.mark.parametrize("region", ["us-east-1\x1b[31m", "us\neast", "\u202eus-east-1", "x" * 1000])
def test_a_region_with_control_characters_reaches_no_report(
    table: Path, region: str, snapshot: SnapshotAssertion
) -> None:
    message = refusal(table, region)
    assert plain(message, table=table) == snapshot
    assert region not in message


@pytest.mark.parametrize(
    ("start", "most_mib"),
    [
        (b"", 2),
        (b"x" * 70_000, 2),
        (b"<html>\n", 2),
        (b"<html>\n" + b"x" * 70_000, 2),
        (b"nodes,train_seconds\n" + b"1,9\n" * 20_000, 200),
    ],
    ids=["nothing", "one line", "a page", "a long page", "a table"],
)
def test_a_gigabyte_that_is_no_table_is_refused_quickly_and_in_little_memory(
    tmp_path: Path, start: bytes, most_mib: int, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "big.csv"
    with path.open("wb") as stream:
        stream.write(start)
        os.truncate(stream.fileno(), 2**30)  # sparse: takes no disk
    tracemalloc.start()
    started = time.process_time()
    message = refusal(path)
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 60
    assert peak < most_mib * 2**20
    assert plain(message, table=path) == snapshot


def table_of(rows: int) -> str:
    return "nodes,train_seconds\n" + "".join(
        f"{place % 8 + 1},{100 + place / 7}\n" for place in range(rows)
    )


def test_a_table_of_5001_rows_is_refused_with_exit_code_2_and_what_to_do(
    table: Path, snapshot: SnapshotAssertion
) -> None:
    table.write_text(table_of(5_001))
    refused = CliRunner().invoke(
        main, ["report", "--csv", str(table), "--output", str(table.parent / "reports")]
    )
    assert refused.exit_code == 2
    said = " ".join(refused.output.split())
    assert plain(said, table=table) == snapshot
    assert not (table.parent / "reports").exists()


def test_many_more_rows_than_are_read_are_counted_quickly(table: Path) -> None:
    table.write_bytes(b"nodes,train_seconds\n" + b"1,9\n" * 250_000)
    started = time.process_time()
    assert "250,000" in refusal(table)
    assert time.process_time() - started < 60


def test_a_price_comes_from_the_catalogue_where_type_and_region_are_known(table: Path) -> None:
    report, _ = report_table(table, table.parent / "reports", "us-east-1")
    assert report.price.usd_per_hour is not None
    # 1 node x 1 h and 2 nodes x 0.5 h: one node-hour each
    assert [row.costs.run_usd for row in report.summary] == pytest.approx(
        [report.price.usd_per_hour] * 2
    )


def test_the_region_may_come_from_the_table(table: Path) -> None:
    first, *rows = TABLE.splitlines()
    table.write_text("\n".join([first + ",region", *(row + ",us-east-1" for row in rows)]))
    assert report_table(table, table.parent / "reports")[0].price.usd_per_hour is not None
    assert (
        report_table(table, table.parent / "reports", "us-east-1")[0].price.usd_per_hour is not None
    )


def test_a_region_that_contradicts_the_table_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "times.csv"
    path.write_text("nodes,train_seconds,region\n1,9,eu-west-1\n2,5,eu-west-1\n")
    assert plain(refusal(path, "us-east-1"), folder=tmp_path) == snapshot


@pytest.mark.parametrize(
    ("instance_type", "region"),
    [
        ("", "us-east-1"),
        ("ml.p3.16xlarge", None),
        ("ml.p3.16xlarge", "eu-west-1"),
        ("DGX A100", "us-east-1"),
    ],
)
def test_an_unknown_price_says_why(
    table: Path, instance_type: str, region: str | None, snapshot: SnapshotAssertion
) -> None:
    table.write_text(TABLE.replace("ml.p3.16xlarge", instance_type))
    price = report_table(table, table.parent / "reports", region)[0].price
    assert price.usd_per_hour is None
    assert price.reason == snapshot


def test_a_table_named_latest_does_not_write_through_the_link(table: Path) -> None:
    reports = table.parent / "reports"
    _, first = report_table(table, reports)
    before = (first / "report.json").read_bytes()
    latest = table.rename(table.with_name("latest.csv"))
    _, second = report_table(latest, reports)
    assert (first / "report.json").read_bytes() == before
    assert second.name not in ("latest", first.name)
    assert (reports / "latest").resolve() == second.resolve()
