from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.guard import explain
from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.errors import PointsMissing
from nodesweep.scaling.analysis.speedup import MixedOutcomesError
from nodesweep.scaling.trend.report_file import parse_report
from nodesweep.tasks.dataset.hashing import cache_file
from tests.plain import plain

REPOSITORY = Path(__file__).resolve().parents[3]
LOCAL = str(REPOSITORY / "configs" / "local.yaml")
REFERENCE = str(REPOSITORY / "configs" / "search_mlp_p3.yaml")
OWN_CODE = str(REPOSITORY / "configs" / "examples" / "own_code_g5.yaml")
REFERENCE_TIMES = "nodes,train_seconds\n1,5940\n2,3300\n4,1620\n8,810\n"


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def without_pages(without_plots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the pages of a report empty, where only its report.json is looked at."""
    for name in ("render_csv", "render_markdown", "_page"):
        monkeypatch.setattr(f"nodesweep.scaling.report.render.{name}", lambda *_, **__: "")


def test_no_line_of_the_help_is_cut_off_at_80_columns() -> None:
    for arguments in (("--help",), ("config", "--help")):
        done = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"})
        commands = done.output.partition("Commands:\n")[2].splitlines()
        assert len(commands) >= 5
        assert [line for line in commands if line.endswith("...")] == []


@pytest.mark.parametrize("config", [LOCAL, REFERENCE])
def test_shipped_configs_validate_and_plan(config: str) -> None:
    assert nodesweep("config", "validate", config).exit_code == 0
    assert nodesweep("plan", config).exit_code == 0


def test_plan_shows_points_and_cost_bound(snapshot: SnapshotAssertion) -> None:
    lines = nodesweep("plan", REFERENCE).output.splitlines()
    assert "12 jobs" in lines[0]
    assert lines[:2] == snapshot
    [bound] = [line for line in lines if line.startswith("cost bound: ")]
    # (1+2+4+8) nodes x 3 repeats x (3 h + 120 s to stop)
    assert all(number in bound for number in ("136.5 node-hours", "120 s", "x 2 "))
    assert bound == snapshot


def test_plan_of_a_program_with_its_own_batch_and_learning_rate(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    raw = yaml.safe_load(Path(OWN_CODE).read_text())
    raw["training"] |= {"batch": None, "learning_rate": None, "hyperparameters": {"batch_size": 32}}
    raw["training"]["source_dir"] = str(Path(OWN_CODE).parent / raw["training"]["source_dir"])
    config = tmp_path / "own.yaml"
    config.write_text(yaml.safe_dump(raw))
    output = nodesweep("plan", str(config)).output
    assert output.splitlines()[1] == snapshot
    assert re.search(r"^ +1 +\d+ +1 +\d+ +- +- +-$", output, re.MULTILINE), output


def test_requests_are_printed_as_json_and_nothing_is_sent() -> None:
    requests = json.loads(nodesweep("requests", LOCAL).stdout)
    assert [request["ResourceConfig"]["InstanceCount"] for request in requests] == [1, 2, 4, 8]
    assert all(
        request["HyperParameters"]["sagemaker_program"] == '"train.py"' for request in requests
    )


def test_schema_accepts_the_shipped_configs() -> None:
    schema = json.loads(nodesweep("config", "schema").stdout)
    jsonschema.validate(yaml.safe_load(Path(LOCAL).read_text()), schema)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "nowhere.yaml"], 2),
        (["plan", LOCAL, "--set", "sweep.colour=1"], 2),
        (["plan", LOCAL, "--set", "training.instance_type=ml.local.smal"], 2),
        (["plan", LOCAL, "--set", "sweep.node_counts=[3]"], 3),
        (["plan", REFERENCE, "--set", "sweep.budget_usd=10"], 3),
        (["requests", LOCAL, "--set", "sweep.node_counts=[3]"], 3),
        (["requests", LOCAL, "--set", "dataset.source=nowhere"], 2),
        (["plan", LOCAL, "--set", f"training.hyperparameters.x={'x' * 2499}"], 3),
        (["requests", LOCAL, "--set", f"training.hyperparameters.x={'x' * 2499}"], 3),
        (["plan", LOCAL, "--set", "platform.endpoint_url=http://127.evil.com:1"], 2),
        (["run"], 2),
        (["run", LOCAL, "--resume", "yesterday"], 2),
        (["stop", "yesterday"], 2),
        (["stop", "local-20261120000000-00000000"], 2),
        (["report"], 2),
        (["report", "--csv", "times.csv", "--config", "nowhere.yaml"], 2),
        (["report", "--csv", "nowhere.csv"], 2),
        (["explode"], 2),
    ],
)
def test_bad_input_gets_its_message_and_code(
    arguments: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = nodesweep(*arguments)
    assert result.exit_code == code
    assert plain(result.stderr, repository=REPOSITORY, folder=tmp_path) == snapshot
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("without_plots")
def test_anyones_numbers_become_a_report(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(REFERENCE_TIMES)
    done = nodesweep("report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path))
    assert all(speedup in done.stdout for speedup in ("1.8x", "3.7x", "7.3x"))
    report = json.loads((tmp_path / "times" / "report.json").read_text())
    speedups = [row["clocks"]["train"]["speedup"] for row in report["summary"]]
    assert speedups == pytest.approx([1, 1.8, 11 / 3, 22 / 3])


@pytest.mark.usefixtures("without_pages")
def test_goals_of_the_command_line_decide_the_recommendation(tmp_path: Path) -> None:
    costly = "nodes,train_seconds,cost_usd\n1,5940,40\n2,3300,45\n4,1620,44\n8,810,46\n"
    (tmp_path / "times.csv").write_text(costly)

    def chosen(*options: str) -> int:
        result = nodesweep(
            "report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path), *options
        )
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / "times" / "report.json").read_text())["recommendation"][
            "chosen"
        ]["nodes"]

    assert (chosen(), chosen("--budget", "44.5"), chosen("--deadline", "3300")) == (8, 4, 4)
    # the config's own names
    assert chosen("--budget-usd-per-run", "44.5") == chosen("--deadline-seconds", "3300") == 4
    assert chosen("--min-efficiency", "0.95") == 1
    # 1 to 4 nodes: 4 USD for 1.2 h; 4 to 8 nodes: 2 USD for .225 h
    assert (chosen("--hour-value", "3"), chosen("--hour-value-usd", "9")) == (1, 8)


@pytest.mark.parametrize(
    ("header", "options"),
    [
        ("nodes,train_seconds", ["--deadline", "-1"]),
        ("nodes,train_seconds", ["--min-efficiency", "75"]),
        ("nodes,train_seconds", ["--min-doubling-ratio", "3"]),
        ("nodes,samples_per_second", ["--deadline", "60"]),
        ("nodes,samples_per_second", ["--hour-value", "60"]),
        ("nodes,train_seconds", ["--hour-value", "0"]),
        ("nodes,train_seconds", ["--hour-value", "60", "--deadline", "60"]),
    ],
)
def test_goals_that_can_not_be_judged_are_refused(
    header: str, options: list[str], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "times.csv").write_text(f"{header}\n1,100\n2,50\n")
    result = nodesweep(
        "report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path), *options
    )
    assert result.exit_code == 2
    assert plain(result.stderr, repository=REPOSITORY, folder=tmp_path) == snapshot


@pytest.mark.usefixtures("without_pages")
def test_goal_and_tolerance_of_the_command_line_judge_the_final_metric(tmp_path: Path) -> None:
    header = "nodes,train_seconds,final_metric"
    (tmp_path / "times.csv").write_text(f"{header}\n1,100,0.90\n2,50,0.95\n4,25,0.87\n")

    def throughput_only(*options: str) -> list[int]:
        result = nodesweep(
            "report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path), *options
        )
        assert result.exit_code == 0, result.output
        rows = json.loads((tmp_path / "times" / "report.json").read_text())["summary"]
        return [row["nodes"] for row in rows if "throughput_only" in row["flags"]]

    assert throughput_only() == [2, 4]  # 0.05 and 0.03 off, either way
    assert throughput_only("--goal", "maximize") == [4]
    assert throughput_only("--goal", "minimize") == [2]
    assert throughput_only("--tolerance", "0.04") == [2]
    assert throughput_only("--goal", "maximize", "--tolerance", "0.04") == []


@pytest.mark.usefixtures("without_pages")
def test_units_that_look_odd_are_confirmed_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("nodes,train_seconds\n1,100\n2,2.4\n")

    def headline(*options: str) -> str:
        arguments = ["--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path), *options]
        assert nodesweep("report", *arguments).exit_code == 0
        report = json.loads((tmp_path / "times" / "report.json").read_text())
        return str(report["headline"])

    assert "--confirm-units" in headline()
    assert headline("--confirm-units").startswith("Run it on 2 nodes")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--csv", "times.csv", "--goal", "maximize"],
        ["--csv", "times.csv", "--tolerance", "0.5"],
        ["--csv", "times.csv", "--tolerance", "-1"],
        ["--csv", "times.csv", "--tolerance", "nan"],
        ["local-20261120000000-00000000", "--goal", "minimize"],
        ["local-20261120000000-00000000", "--tolerance", "1"],
        ["local-20261120000000-00000000", "--confirm-units"],
    ],
)
def test_goal_and_tolerance_without_a_final_metric_to_judge_are_refused(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.csv").write_text("nodes,train_seconds\n1,100\n2,50\n")
    result = nodesweep("report", *arguments)
    assert result.exit_code == 2
    assert plain(result.stderr, repository=REPOSITORY, folder=tmp_path) == snapshot


def test_outcomes_that_do_not_compare_are_a_message() -> None:
    assert explain(MixedOutcomesError("region: two")) == ("region: two", 1)


def test_an_os_error_names_its_file_if_it_has_one() -> None:
    assert explain(OSError(5, "Input/output error", "a")) == ("a: Input/output error", 1)
    assert explain(OSError(104, "Connection reset")) == ("Connection reset", 1)


@pytest.mark.usefixtures("without_pages")
def test_a_region_prices_the_nodes_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(
        "nodes,train_seconds,billable_seconds,instance_type\n1,5000,5400,ml.m5.large\n2,2600,2700,ml.m5.large\n"
    )
    result = nodesweep(
        "report",
        "--csv",
        str(tmp_path / "times.csv"),
        "--output",
        str(tmp_path),
        "--region",
        "us-east-1",
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "times" / "report.json").read_text())
    price = report["price"]["usd_per_hour"]
    assert [row["costs"]["run_usd"] for row in report["summary"]] == pytest.approx(
        [1.5 * price, 1.5 * price]
    )


def test_bad_row_of_a_table_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(REFERENCE_TIMES + "16,-1\n")
    result = nodesweep(
        "report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path / "reports")
    )
    assert result.exit_code == 2
    assert "line 6" in result.output
    assert not (tmp_path / "reports").exists()


@pytest.mark.usefixtures("without_plots")
def test_reports_that_cannot_be_written_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(REFERENCE_TIMES)
    (tmp_path / "taken").write_text("a file where a directory is wanted")
    result = nodesweep(
        "report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path / "taken" / "x")
    )
    assert result.exit_code == 1
    assert "taken" in result.output and "Traceback" not in result.output


def test_a_prefect_setting_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nodesweep", "run", LOCAL, "--set", "platform.autostart=false"]
    own = {"PREFECT_API_URL": "http://[::1", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **own}
    )
    assert (done.returncode, "PREFECT_" in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_prefect_api_that_does_not_answer_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Nobody listens on the discard port.
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        done = nodesweep("run", LOCAL, "--set", "platform.autostart=false")
    assert (done.exit_code, "PREFECT_API_URL" in done.stderr) == (1, True), done.stderr
    assert isinstance(done.exception, SystemExit) and "Traceback" not in done.output


@pytest.mark.parametrize("url", ["abc", "http://127.0.0.1:port/api"])
def test_a_prefect_api_that_is_no_url_is_bad_input(url: str) -> None:
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises((httpx.UnsupportedProtocol, httpx.InvalidURL, RuntimeError)) as caught,
        get_client(sync_client=True) as client,
    ):
        client.hello()
    message, code = explain(caught.value)
    assert (code, "PREFECT_API_URL" in message) == (2, True)


def test_a_prefect_server_that_wants_its_password_says_so(snapshot: SnapshotAssertion) -> None:
    """Prefect's client raises its own subclass of httpx's error."""
    for kind in (httpx.HTTPStatusError, PrefectHTTPStatusError):
        request = httpx.Request("POST", "http://127.0.0.1:4200/api/flows/")
        error = kind(
            "Client error '401 Unauthorized'",
            request=request,
            response=httpx.Response(401, request=request),
        )
        message, code = explain(error)
        assert (code, "PREFECT_API_AUTH_STRING" in message) == (1, True)
        assert message == snapshot


@pytest.mark.parametrize(
    "record",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"3",
        b'{"config": {"name": "local"}}',
        b'{"config": null}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_record_of_a_sweep_is_one_message(
    record: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "reports" / "local-20261120000000-00000000"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_bytes(record)
    for command in ("stop", "report"):
        result = nodesweep(command, folder.name)
        assert (result.exit_code, "sweep.json" in result.output) == (2, True), result.output
        assert isinstance(result.exception, SystemExit)


def test_only_an_interrupted_run_says_that_its_jobs_were_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nodesweep.cli.main.read_config_to_run", interrupt)
    run, plan = nodesweep("run", LOCAL), nodesweep("plan", LOCAL)
    assert (run.exit_code, plan.exit_code) == (1, 1)
    assert run.output == "nodesweep: interrupted\n"
    assert plan.output == "nodesweep: interrupted\n"


def test_report_of_a_run_with_too_few_points_is_shown_before_the_run_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    from nodesweep.flows.scaling_benchmark import SweepResult

    golden = REPOSITORY / "tests" / "nodesweep" / "scaling" / "golden" / "reference.json"
    report = parse_report(golden.read_bytes(), "golden")
    failed = report.points[0].model_copy(
        update={"status": "Failed", "reason": "exit code 1", "log_tail": ["algo-1: CUDA error"]}
    )
    repeat = "`nodesweep run CONFIG --resume bench` repeats the contended runs."
    report = report.model_copy(update={"points": [failed, *report.points[1:]], "headline": repeat})
    missing = PointsMissing("as Prefect keeps it")
    missing.result = SweepResult("bench", report, tmp_path, 4, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise missing

    monkeypatch.setattr("nodesweep.cli.session.flow_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr("nodesweep.cli.session.run_flow", fail)
    done = nodesweep("run", LOCAL)
    assert done.exit_code == 1
    assert f"report: {tmp_path / 'report.html'}" in done.stdout
    assert done.output.endswith(done.stderr)
    assert done.output.count("CUDA error") == 1
    assert f"`nodesweep run {LOCAL} --resume bench`" in " ".join(done.stdout.split())
    assert plain(done.stderr, config=LOCAL) == snapshot


def test_the_largest_job_that_may_confirm_is_checked_before_anything_is_paid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[int | None] = []

    def check(config: Any) -> Any:
        checked.append(config.sweep.confirm)
        return SimpleNamespace(findings=SimpleNamespace(problems=("sweep.budget_usd: too low",)))

    monkeypatch.setattr("nodesweep.flows.stages.offline.check_offline", check)
    predicts = ("--set", "sweep.design=predict", "--set", "sweep.node_counts=[1,2,4,8]")
    refused = nodesweep("run", LOCAL, *predicts, "--confirm")
    assert (refused.exit_code, checked) == (3, [8])
    assert "sweep.budget_usd: too low" in refused.output


def test_how_a_run_is_shown_is_handed_to_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []

    def session(*_: Any, view_options: Any, **__: Any) -> Any:
        looks.append(view_options)
        raise KeyboardInterrupt

    monkeypatch.setattr("nodesweep.cli.session.flow_session", session)
    assert nodesweep("run", LOCAL).exit_code == 1
    more = ("--set", "training.seed=2", "--output", "my reports")
    nodesweep("run", LOCAL, "--verbose", "--log-format", "json", *more)
    assert [(look.log_format, look.verbose) for look in looks] == [("auto", False), ("json", True)]
    assert (
        looks[1].resume_command
        == f"nodesweep run {LOCAL} --set training.seed=2 --output 'my reports'"
    )
    monkeypatch.setattr("nodesweep.cli.main.refuse_confirm", lambda *_: None)
    nodesweep("run", LOCAL, "--confirm")
    assert looks[2].resume_command == f"nodesweep run {LOCAL} --confirm"
    refused = nodesweep("run", LOCAL, "--log-format", "xml")
    assert refused.exit_code == 2 and "xml" in refused.output


def test_rehash_forgets_the_hashes_of_the_local_dataset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("nodesweep.cli.session.flow_session", lambda *_, **__: nullcontext())

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nodesweep.cli.session.run_flow", stop)
    dataset = load_config(Path(LOCAL)).dataset
    assert dataset is not None
    remembered = cache_file(dataset.source, dataset.pattern)
    remembered.parent.mkdir(parents=True)
    remembered.touch()
    nodesweep("run", LOCAL)
    assert remembered.exists()
    nodesweep("run", LOCAL, "--rehash")
    assert not remembered.exists()


def test_requests_prints_what_is_sent_and_names_what_is_masked_and_filled_in(
    snapshot: SnapshotAssertion,
) -> None:
    changes = {"FI_PROVIDER": "efa", "HF_TOKEN": "s3cr3t", "WANDB_API_KEY": "${MY_KEY}"}
    given = [f"--set=training.environment.{name}={value}" for name, value in changes.items()]
    given += ["--set=training.baseline_seconds=40"]
    done = CliRunner().invoke(main, ["requests", LOCAL, *given])
    assert done.exit_code == 0, done.output
    for request in json.loads(done.stdout):
        environment = request["Environment"]
        assert (environment["FI_PROVIDER"], environment["WANDB_API_KEY"]) == ("efa", "${MY_KEY}")
    assert "s3cr3t" not in done.output
    assert done.stderr.splitlines() == snapshot


def test_requests_of_own_code_show_the_programs_name_and_say_nothing_more() -> None:
    own = REPOSITORY / "configs" / "examples" / "own_code_g5.yaml"
    done = CliRunner().invoke(main, ["requests", str(own)])
    assert done.stderr == "" and "(hidden)" not in done.stdout
    assert json.loads(done.stdout)[0]["Environment"]["SAGEMAKER_PROGRAM"]
