"""`nodesweep compare` and `nodesweep history` as a user runs them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.aws.platform import aws_client
from nodesweep.cli.main import main
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.scaling import names
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import ScalingReport, analyse
from nodesweep.tasks.report.history import put_history
from tests.nodesweep.cli.test_output import exit_code, unread
from tests.nodesweep.scaling.conftest import make_outcome, make_report  # noqa: F401
from tests.nodesweep.scaling.report.predictions.conftest import (  # noqa: F401
    budget_report,
    make_budget_outcomes,
)

BEFORE, AFTER = "bench-20260102030405-0a1b2c3d", "bench-20260105030405-0a1b2c3d"
GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "history.md").read_text()
TIMES = (100.0, 100.5, 101.0, 101.5, 102.0)


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def report_of(
    sweep: str, slower: float = 1.0, lost: tuple[int, ...] = (), **changes: Any
) -> ScalingReport:
    """Return a report with five runs each on 1 and 2 nodes; those on 2 nodes take `slower` times as
    long."""
    facts: dict[str, Any] = {
        "platform_kind": "aws",
        "instance_type": "ml.m5.xlarge",
        "region": "us-east-1",
        **changes,
    }
    outcomes = [
        JobOutcome(
            nodes=nodes, repeat=repeat, attempt=1, job_name=f"{sweep}-n{nodes}-r{repeat}-a1-abcd",
            status="Failed" if nodes in lost else "Completed",
            clocks=Clocks(train_seconds=seconds * (1 if nodes == 1 else slower / 2)),
            train_clock="program", **facts,
        )
        for nodes in (1, 2)
        for repeat, seconds in enumerate(TIMES, start=1)
    ]  # fmt: skip
    return analyse(
        sweep, None, None, outcomes, None, {}, datetime(2026, 1, int(sweep[12:14]), tzinfo=UTC)
    )


def body_of(report: ScalingReport) -> bytes:
    return names.pretty_json(report.model_dump(mode="json"))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return folders(report), which writes its report.json under ./reports/<sweep>, as a run
    does."""
    monkeypatch.chdir(tmp_path)

    def write(report: ScalingReport) -> Path:
        folder = tmp_path / "reports" / report.sweep_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_bytes(body_of(report))
        return folder

    return write


@pytest.fixture
def bucket(aws: Callable[[str], Any], platform: PlatformConfig) -> Iterator[Any]:
    aws_client.cache_clear()  # a client made outside the mocked account would not be mocked
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    yield s3
    aws_client.cache_clear()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write plots without drawing them, which takes a second of CPU time each."""
    monkeypatch.setattr("nodesweep.cli.commands.history.history_plot", lambda *_: b"<svg/>")


@pytest.fixture
def config(raw_config: dict[str, Any], tmp_path: Path) -> str:
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(raw_config))
    return str(tmp_path / "bench.yaml")


def test_regression_is_exit_code_1_and_none_is_0(folders: Callable[..., Path]) -> None:
    folders(report_of(BEFORE))
    folders(report_of(AFTER, slower=1.2))
    slower = nodesweep("compare", BEFORE, AFTER)
    assert slower.exit_code == 1
    assert "2 nodes" in slower.output and "(AWS," in slower.output
    faster = nodesweep("compare", AFTER, BEFORE)
    assert (faster.exit_code, "improvement" in faster.output) == (0, True)
    assert nodesweep("compare", BEFORE, AFTER, "--tolerance", "0.3").exit_code == 0


def test_report_files_and_their_folders_compare_too(folders: Callable[..., Path]) -> None:
    before, after = folders(report_of(BEFORE)), folders(report_of(AFTER))
    assert nodesweep("compare", str(before), str(after / "report.json")).exit_code == 0


def test_sweeps_that_compare_may_be_shortened(
    folders: Callable[..., Path], snapshot: SnapshotAssertion
) -> None:
    folders(report_of(BEFORE))
    folders(report_of(AFTER))
    result = nodesweep("compare", BEFORE[:14], "latest")
    assert result.exit_code == 0
    assert result.stderr == snapshot, result.output
    result = nodesweep("compare", "bench", AFTER)
    assert result.exit_code == 2
    assert result.stderr == snapshot


def test_reports_directory_is_that_of_output_or_of_the_config(
    folders: Callable[..., Path],
    raw_config: dict[str, Any],
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    folders(report_of(BEFORE))
    folders(report_of(AFTER))
    (tmp_path / "reports").rename(tmp_path / "elsewhere")
    raw_config["report"] = {"directory": "elsewhere"}
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(raw_config))
    assert nodesweep("compare", BEFORE, AFTER, "--output", "elsewhere").exit_code == 0
    assert (
        nodesweep("compare", BEFORE, AFTER, "--config", str(tmp_path / "bench.yaml")).exit_code == 0
    )
    missing = nodesweep("compare", BEFORE, AFTER)
    assert missing.exit_code == 2
    assert missing.output == snapshot


def test_json_is_the_whole_output(folders: Callable[..., Path]) -> None:
    folders(report_of(BEFORE))
    folders(report_of(AFTER, slower=1.2))
    made = nodesweep("compare", BEFORE, AFTER, "--json")
    compared = json.loads(made.stdout)
    assert (made.exit_code, compared["regressions"], compared["rows"][1]["verdict"]) == (
        1,
        [2],
        "regression",
    )


def test_node_count_at_which_nothing_completed_any_more_is_exit_code_1(
    folders: Callable[..., Path],
) -> None:
    report = report_of(BEFORE)
    folders(report)
    failed = [JobOutcome(
        nodes=nodes, repeat=1, attempt=1, job_name="x", status="Failed", platform_kind="aws",
        instance_type="ml.m5.xlarge", region="us-east-1",
    ) for nodes in (1, 2)]  # fmt: skip
    folders(analyse(AFTER, None, None, failed, None, {}, datetime(2026, 1, 5, tzinfo=UTC)))
    assert nodesweep("compare", BEFORE, AFTER).exit_code == 1
    lost = nodesweep("compare", BEFORE, AFTER, "--json")
    assert (lost.exit_code, json.loads(lost.stdout)["lost"]) == (1, [1, 2])


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_reader_that_has_seen_enough_is_no_error(
    folders: Callable[..., Path], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folders(report_of(BEFORE))
    folders(report_of(AFTER))
    with unread() as stdout:
        assert exit_code(stdout, "compare", BEFORE, AFTER, *options) == 0
    assert capsys.readouterr().err == ""


def test_other_conditions_are_exit_code_2_until_accepted(
    folders: Callable[..., Path], snapshot: SnapshotAssertion
) -> None:
    folders(report_of(BEFORE, image_uri="old"))
    folders(report_of(AFTER, image_uri="new"))
    refused = nodesweep("compare", BEFORE, AFTER)
    assert refused.exit_code == 2
    assert refused.output == snapshot
    assert refused.stdout == ""
    allowed = nodesweep("compare", BEFORE, AFTER, "--allow", "image_uri")
    assert (allowed.exit_code, "forced" in allowed.output) == (0, False)
    forced = nodesweep("compare", BEFORE, AFTER, "--force")
    assert forced.exit_code == 0
    assert "forced" in forced.output and "image_uri" in forced.output


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe",
        b'{"schema_version": 2, "price": NaN}',
        b"[1]",
        b'{"schema_version": 1}',
        b'{"schema_version": 2}',
        b'{"schema_version": "2"}',
    ],
)
def test_report_that_cannot_be_read_says_why(
    folders: Callable[..., Path], body: bytes, snapshot: SnapshotAssertion
) -> None:
    folder = folders(report_of(BEFORE))
    (folder / "report.json").write_bytes(body)
    result = nodesweep("compare", BEFORE, BEFORE)
    assert result.exit_code == 2
    assert result.output == snapshot, result.output


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(summary=[]),
        lambda raw: raw.update(train_clock="measured"),
        lambda raw: raw["points"][3]["clocks"].update(train_seconds=-1),
        lambda raw: raw["summary"][0]["clocks"]["train"].update(seconds=1.5),
        lambda raw: raw["points"].pop(),
    ],
    ids=["no rows", "another clock", "a negative time", "a median of other runs", "a run less"],
)
def test_report_whose_numbers_do_not_hold_together_is_damaged(
    folders: Callable[..., Path],
    change: Callable[[dict[str, Any]], None],
    snapshot: SnapshotAssertion,
) -> None:
    folder = folders(report_of(BEFORE))
    raw = json.loads((folder / "report.json").read_bytes())
    change(raw)
    (folder / "report.json").write_text(json.dumps(raw))
    result = nodesweep("compare", BEFORE, BEFORE)
    assert result.exit_code == 2
    assert result.output == snapshot, result.output


@pytest.mark.parametrize("section", ["training", "dataset"])
def test_config_of_another_shape_is_no_traceback(
    folders: Callable[..., Path], section: str, snapshot: SnapshotAssertion
) -> None:
    folder = folders(report_of(BEFORE))
    raw = json.loads((folder / "report.json").read_bytes())
    (folder / "report.json").write_text(json.dumps({**raw, "config": {section: ["odd"]}}))
    result = nodesweep("compare", BEFORE, BEFORE)
    assert result.exit_code == 2
    assert result.output == snapshot, result.output


def test_a_name_too_long_for_the_system_is_a_message(
    folders: Callable[..., Path], snapshot: SnapshotAssertion
) -> None:
    folders(report_of(BEFORE))
    result = nodesweep("compare", BEFORE, "x" * 300)
    assert result.exit_code == 2
    assert result.output == snapshot, result.output


@pytest.mark.parametrize("reference", ["nowhere", "nowhere/report.json", "."])
def test_reference_to_nothing_says_what_is_expected(
    folders: Callable[..., Path], reference: str, snapshot: SnapshotAssertion
) -> None:
    folders(report_of(BEFORE))
    result = nodesweep("compare", BEFORE, reference)
    assert result.exit_code == 2
    assert result.output == snapshot


def test_unreadable_file_is_a_message(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    folders(report_of(BEFORE))

    def deny(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", deny)
    result = nodesweep("compare", BEFORE, BEFORE)
    assert result.exit_code == 2
    assert result.output == snapshot


def test_sweep_that_is_not_here_is_read_from_the_bucket(
    bucket: Any,
    platform: PlatformConfig,
    config: str,
    folders: Callable[..., Path],
    snapshot: SnapshotAssertion,
) -> None:
    folders(report_of(BEFORE))
    missing = nodesweep("compare", BEFORE, AFTER, "--config", config)
    assert missing.exit_code == 2
    assert missing.output == snapshot
    key = names.report_key(platform.prefix, AFTER, "report.json")
    bucket.put_object(Bucket=platform.bucket, Key=key, Body=body_of(report_of(AFTER, slower=1.2)))
    assert nodesweep("compare", BEFORE, AFTER, "--config", config).exit_code == 1


def test_history_is_tabulated_and_plotted(
    bucket: Any,
    platform: PlatformConfig,
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for report in (report_of(BEFORE), report_of(AFTER, slower=1.25)):
        put_history(BucketStore(platform, client=bucket), [report], "bench")
    result = nodesweep("history", "bench", "--config", config, "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert all(fact in result.output for fact in ("AWS", "ml.m5.xlarge", "1.6x"))
    for extension, beginning in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        path = tmp_path / "out" / f"history-bench.{extension}"
        assert f"plot: {path}" in result.output and path.stat().st_size > 1000
        assert path.read_bytes().startswith(beginning)
    monkeypatch.setattr("nodesweep.cli.commands.history.history_plot", lambda *_: b"<svg/>")
    one = nodesweep(
        "history", "bench", "--config", config, "--nodes", "1", "--output", str(tmp_path / "out")
    )
    assert "1.6x" not in one.output


@pytest.mark.usefixtures("undrawn")
def test_history_says_how_good_predictions_were(
    bucket: Any,
    platform: PlatformConfig,
    config: str,
    tmp_path: Path,
    budget_report: Callable[..., ScalingReport],  # noqa: F811
    snapshot: SnapshotAssertion,
) -> None:
    measured = {1: (100.0, 0.0), 2: (50.0, 2.0), 4: (25.0, 1.5), 8: (12.5, 0.9)}
    for sweep in (BEFORE, AFTER):
        report = budget_report(measured, sweep_id=sweep)
        put_history(BucketStore(platform, client=bucket), [report], "bench")
    result = nodesweep("history", "bench", "--config", config, "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if "predictions" in line] == snapshot


def verdict_of(history: Result) -> list[str]:
    """Return the lines between the table and the plots."""
    lines = history.output.splitlines()
    headline = next(at for at, line in enumerate(lines) if "reference: " in line) - 1
    return [line for line in lines[headline:] if not line.startswith("plot: ")]


@pytest.mark.usefixtures("undrawn")
def test_history_alarms_by_the_chart_with_exit_code_1(
    bucket: Any,
    platform: PlatformConfig,
    config: str,
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    def history(*options: str) -> Result:
        out = str(tmp_path / "out")
        return nodesweep("history", "bench", "--config", config, "--output", out, *options)

    *nights, last = [f"bench-202601{day:02}030405-0a1b2c3d" for day in range(1, 13)]
    for night in nights[:5]:
        put_history(BucketStore(platform, client=bucket), [report_of(night)], "bench")
    learning = history()
    assert learning.exit_code == 0
    assert verdict_of(learning) == snapshot
    for night in nights[5:]:
        put_history(BucketStore(platform, client=bucket), [report_of(night, slower=1.2)], "bench")
    slow = history()
    assert slow.exit_code == 1
    assert f"reference: {nights[0]}" in slow.output
    assert verdict_of(slow) == snapshot
    assert history("--tolerance", "0.3").exit_code == 0
    assert history("--nodes", "1").exit_code == 0
    pinned = history("--reference", nights[5])
    assert pinned.exit_code == 0 and f"reference: {nights[5]} (pinned)" in pinned.output
    assert f"reference: {nights[5]} (pinned)" in history("--reference", nights[5][:14]).output
    unknown = history("--reference", "bench-20250101000000-0a1b2c3d")
    assert unknown.exit_code == 2 and "bench-20250101000000-0a1b2c3d" in unknown.output
    put_history(BucketStore(platform, client=bucket), [report_of(last, lost=(2,))], "bench")
    assert history("--nodes", "1").exit_code == 0
    lost = history("--nodes", "2")
    assert (lost.exit_code, last in lost.output) == (1, True)
    put_history(BucketStore(platform, client=bucket), [report_of(last, lost=(1, 2))], "bench")
    assert history("--nodes", "1").exit_code == 1


@pytest.mark.usefixtures("undrawn")
def test_commands_of_the_guide_run(
    bucket: Any,
    platform: PlatformConfig,
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """docs/history.md, with the name, the config, the counts and a sweep of this benchmark."""
    monkeypatch.chdir(tmp_path)
    for night in range(1, 7):
        put_history(
            BucketStore(platform, client=bucket),
            [report_of(f"bench-202601{night:02}030405-0a1b2c3d")],
            "bench",
        )
    commands = re.findall(r"^    nodesweep (history .*)$", GUIDE, re.MULTILINE)
    assert len(commands) == 3
    here = {
        "local --config configs/local.yaml": f"bench --config {config}",
        "local-20261120191500-1a2b3c4d": "bench-20260101030405-0a1b2c3d",
        "--nodes 4": "--nodes 2",
    }
    for command in commands:
        for shown, used in here.items():
            command = command.replace(shown, used)
        done = nodesweep(*shlex.split(command, comments=True))
        assert done.exit_code == 0, done.output
        assert "5%" in done.output
    assert (tmp_path / "reports" / "history-bench.svg").is_file()


def test_history_of_one_sweep_is_a_table_without_a_plot(
    bucket: Any, platform: PlatformConfig, config: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    put_history(BucketStore(platform, client=bucket), [report_of(BEFORE)], "bench")
    result = nodesweep("history", "bench", "--config", config, "--output", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == snapshot
    assert not (tmp_path / "out").exists()


def test_unknown_benchmark_is_answered_with_the_known_ones(
    bucket: Any, platform: PlatformConfig, config: str, snapshot: SnapshotAssertion
) -> None:
    empty = nodesweep("history", "bench", "--config", config)
    assert empty.exit_code == 2
    assert empty.output == snapshot
    put_history(BucketStore(platform, client=bucket), [report_of(BEFORE)], "other")
    result = nodesweep("history", "bench", "--config", config)
    assert result.exit_code == 2
    assert result.output == snapshot
    nodes = nodesweep("history", "other", "--config", config, "--nodes", "64")
    assert nodes.exit_code == 2
    assert nodes.output == snapshot


def test_damaged_file_of_a_history_costs_its_sweep_alone(
    bucket: Any, platform: PlatformConfig, config: str, snapshot: SnapshotAssertion
) -> None:
    put_history(BucketStore(platform, client=bucket), [report_of(BEFORE)], "bench")
    key = names.history_key(platform.prefix, "bench", AFTER, 1)
    bucket.put_object(Bucket=platform.bucket, Key=key, Body=b"not parquet")
    result = nodesweep("history", "bench", "--config", config)
    assert result.exit_code == 0
    assert result.stderr == snapshot
    assert BEFORE in result.stdout
