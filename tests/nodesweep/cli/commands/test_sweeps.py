"""`nodesweep list`, `show` and `open` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import config_file
from nodesweep.scaling import names
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import analyse

FINISHED, HALF, BEGUN, DAMAGED = (
    "bench-20260104030405-0a1b2c3d",
    "bench-20260103030405-0a1b2c3d",
    "bench-20260102030405-0a1b2c3d",
    "bench-20260101030405-0a1b2c3d",
)


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def report_of(config: BenchmarkConfig, sweep: str, statuses: dict[int, str]) -> bytes:
    """Return a report.json of single runs, given how each node count ended; the sweep has cost
    $12.30."""
    outcomes = [
        JobOutcome(
            nodes=nodes, repeat=1, attempt=1, job_name=f"{sweep}-n{nodes}-r1-a1-abcd",
            status=status, platform_kind="aws", instance_type="ml.m5.xlarge", region="us-east-1",
            clocks=Clocks(train_seconds=100 / nodes if status == "Completed" else None),
            train_clock="program",
        )
        for nodes, status in statuses.items()
    ]  # fmt: skip
    at = datetime(2026, 1, 5, tzinfo=UTC)
    report = analyse(sweep, config, None, outcomes, None, {}, at).model_dump(mode="json")
    report["costs"]["spent_usd"] = 12.3
    return names.pretty_json(report)


@pytest.fixture
def reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_config: Callable[..., BenchmarkConfig]
) -> Path:
    """./reports with a finished sweep, a sweep that lacks a point, and a sweep without a report."""
    monkeypatch.chdir(tmp_path)
    config = make_config(sweep={"node_counts": [1, 2], "repeats": 1})
    record = {"config": config.model_dump(mode="json"), "inputs": {}, "provenance": {}}
    for sweep in (FINISHED, HALF, BEGUN):
        folder = tmp_path / "reports" / sweep
        folder.mkdir(parents=True)
        (folder / "sweep.json").write_bytes(names.pretty_json(record))
        (folder / "run.log").write_text("")
    for sweep, second in ((FINISHED, "Completed"), (HALF, "Failed")):
        body = report_of(config, sweep, {1: "Completed", 2: second})
        (tmp_path / "reports" / sweep / "report.json").write_bytes(body)
    (tmp_path / "reports" / FINISHED / "report.html").write_text("<html>")
    return tmp_path / "reports"


def test_list_shows_states_points_and_costs_the_newest_first(reports: Path) -> None:
    result = nodesweep("list")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["sweep", "state", "points", "spent", "started", "(UTC)"],
        [FINISHED, "finished", "2/2", "$12.30", "2026-01-04", "03:04"],
        [HALF, "incomplete", "1/2", "$12.30", "2026-01-03", "03:04"],
        [BEGUN, "no", "report", "–/2", "–", "2026-01-02", "03:04"],
    ]
    listed = json.loads(nodesweep("list", "--json").stdout)
    assert [sweep["sweep_id"] for sweep in listed] == [FINISHED, HALF, BEGUN]
    assert listed[0] | {"problem": None} == listed[0]
    assert (listed[0]["spent_usd"], listed[1]["points_done"], listed[2]["points_done"]) == (
        12.3,
        1,
        None,
    )


def test_list_of_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    result = nodesweep("list", "--output", "none/yet")
    assert result.exit_code == 0
    assert result.stdout == snapshot
    assert json.loads(nodesweep("list", "--json").stdout) == []


def test_a_damaged_report_costs_its_line_alone(reports: Path, snapshot: SnapshotAssertion) -> None:
    (reports / HALF / "report.json").write_text("{")
    result = nodesweep("list")
    assert (result.exit_code, result.stdout.count("finished")) == (0, 1)
    assert "unreadable" in result.stdout
    assert result.stderr == snapshot
    shown = nodesweep("show", HALF)
    assert shown.exit_code == 1
    assert shown.stderr == snapshot


def test_a_config_of_another_version_leaves_what_was_planned_open(reports: Path) -> None:
    record: dict[str, Any] = {"config": {"colour": 1}, "inputs": {}, "provenance": {}}
    for sweep in (BEGUN, HALF):
        (reports / sweep / "sweep.json").write_text(json.dumps(record))
    listed = {line.split()[0]: line.split()[1:-3] for line in nodesweep("list").stdout.splitlines()}
    assert (listed[BEGUN], listed[HALF]) == (["no", "report", "–/–"], ["reported", "1/–"])
    assert f"--resume {BEGUN}" in nodesweep("show", BEGUN).stdout
    assert "--resume" not in nodesweep("show", HALF).stdout


def test_show_has_the_table_the_headline_and_the_path(reports: Path) -> None:
    result = nodesweep("show", "latest")
    assert (result.exit_code, f"report: reports/{FINISHED}/report.html" in result.stdout) == (
        0,
        True,
    )
    assert "2.0x" in result.stdout
    headline = json.loads((reports / FINISHED / "report.json").read_bytes())["headline"]
    assert headline in " ".join(result.stdout.split())
    assert "--resume" not in result.stdout


@pytest.mark.parametrize("sweep", [HALF, BEGUN])
def test_show_says_how_an_unfinished_sweep_goes_on(
    reports: Path, sweep: str, snapshot: SnapshotAssertion
) -> None:
    result = nodesweep("show", sweep)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-5:] == snapshot


def test_show_prints_commands_that_can_be_typed_as_they_are(
    reports: Path, snapshot: SnapshotAssertion
) -> None:
    """The commands have the options that this command was given."""
    config = json.loads((reports / BEGUN / "sweep.json").read_bytes())["config"]
    Path("my.yaml").write_text(yaml.safe_dump(config))
    result = nodesweep("show", BEGUN, "--config", "my.yaml", "--output", "reports")
    assert result.stdout.splitlines()[2:] == snapshot


def test_show_finds_the_config_that_a_sweep_was_started_with(
    reports: Path, make_config: Callable[..., BenchmarkConfig], snapshot: SnapshotAssertion
) -> None:
    """The digest in the sweep's ID identifies the config; another config of the same name is
    ignored."""
    config = make_config(sweep={"node_counts": [1, 2], "repeats": 1})
    sweep = names.sweep_id(config, datetime(2026, 1, 6, tzinfo=UTC))
    (reports / BEGUN).rename(reports / sweep)
    raw = json.loads((reports / sweep / "sweep.json").read_bytes())["config"]
    other = raw | {"sweep": raw["sweep"] | {"node_counts": [1, 4]}}
    Path("another.yaml").write_text(yaml.safe_dump(other))
    Path("broken.yaml").write_text("name: bench\n: [")
    assert nodesweep("show", sweep).stdout == snapshot
    Path("configs").mkdir()
    Path("configs/mine.yaml").write_text(yaml.safe_dump(raw))
    assert nodesweep("show", sweep).stdout == snapshot


def test_show_of_a_shipped_config_names_it(reports: Path, snapshot: SnapshotAssertion) -> None:
    local = load_config(config_file(Path("local")))
    sweep = names.sweep_id(local, datetime(2026, 1, 6, tzinfo=UTC))
    (reports / BEGUN).rename(reports / sweep)
    assert nodesweep("show", sweep).stdout == snapshot


def test_a_sweep_whose_platform_does_not_run_is_not_running(
    reports: Path, make_config: Callable[..., BenchmarkConfig], snapshot: SnapshotAssertion
) -> None:
    platform = {"endpoint_url": "http://127.0.0.1:4570", "autostart": True}
    config = make_config(platform=platform | {"state_directory": "state"})
    record = {"config": config.model_dump(mode="json"), "inputs": {}, "provenance": {}}
    (reports / BEGUN / "sweep.json").write_bytes(names.pretty_json(record))
    said = nodesweep("show", BEGUN).stdout
    assert said == snapshot
    assert "--follow" not in said and "nodesweep logs" not in said
    logs = reports / BEGUN / "logs"
    logs.mkdir()
    (logs / "n1-r1-a1-algo-1.log").write_text("")
    assert nodesweep("show", BEGUN).stdout == snapshot


def test_show_of_a_sweep_that_is_elsewhere_says_what_to_do(
    reports: Path, snapshot: SnapshotAssertion
) -> None:
    result = nodesweep("show", DAMAGED)
    assert result.exit_code == 2
    assert result.stderr == snapshot


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that a browser on a display would show."""
    pages: list[str] = []
    monkeypatch.setattr("click.launch", lambda page: pages.append(page) or 0)
    monkeypatch.setenv("DISPLAY", ":0")
    return pages


def test_open_takes_the_newest_sweep(reports: Path, launched: list[str]) -> None:
    result = nodesweep("open")
    assert (result.exit_code, launched) == (0, [str(reports / FINISHED / "report.html")])
    assert result.stdout == f"reports/{FINISHED}/report.html\n"


def test_open_without_a_display_prints_the_path_alone(
    reports: Path,
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    result = nodesweep("open", FINISHED)
    assert (result.exit_code, launched) == (0, [])
    assert result.stdout == f"reports/{FINISHED}/report.html\n"
    assert result.stderr == snapshot


def test_open_says_where_no_program_opens_it(
    reports: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("click.launch", lambda page: 1)
    result = nodesweep("open", FINISHED)
    assert result.exit_code == 1
    assert result.stderr == snapshot


def test_open_of_a_sweep_without_a_report_says_so(
    reports: Path, launched: list[str], snapshot: SnapshotAssertion
) -> None:
    result = nodesweep("open", BEGUN)
    assert (result.exit_code, launched) == (1, [])
    assert result.stderr == snapshot


def test_a_sweep_of_several_instance_types_counts_the_points_of_all(
    reports: Path, make_config: Callable[..., BenchmarkConfig]
) -> None:
    types = {"instance_types": ["ml.m5.xlarge", "ml.m5.4xlarge"], "node_counts": [1, 2]}
    training = {"instance_type": "ml.m5.xlarge"}
    config = make_config(sweep={**types, "repeats": 1}, training=training)
    record = {"config": config.model_dump(mode="json"), "inputs": {}, "provenance": {}}
    (reports / BEGUN / "sweep.json").write_bytes(names.pretty_json(record))
    [listed] = [line for line in nodesweep("list").output.splitlines() if BEGUN in line]
    assert "–/4" in listed
