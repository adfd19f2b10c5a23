from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from flows.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
LOCAL = str(REPOSITORY / "configs" / "local.yaml")
REFERENCE = str(REPOSITORY / "configs" / "search_mlp_p3.yaml")
REFERENCE_TIMES = "nodes,train_seconds\n1,5940\n2,3300\n4,1620\n8,810\n"


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_help_answers_in_under_a_second() -> None:
    seconds = []
    for _ in range(3):  # the best of three: the first one may still compile
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "--help"], capture_output=True, text=True, cwd=REPOSITORY
        )
        seconds.append(time.perf_counter() - started)
        assert "requests" in done.stdout and done.returncode == 0
    assert min(seconds) < 1.0


def test_help_imports_nothing_heavy() -> None:
    program = "import sys, flows.cli; print({'prefect', 'boto3', 'pandas', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("config", [LOCAL, REFERENCE])
def test_shipped_configs_validate_and_plan(config: str) -> None:
    assert nodesweep("config", "validate", config).exit_code == 0
    plan = nodesweep("plan", config)
    assert plan.exit_code == 0
    assert "strong scaling (fixed global batch)" in plan.output


def test_plan_shows_points_and_cost_bound() -> None:
    output = nodesweep("plan", REFERENCE).output
    assert "12 jobs on ml.p3.16xlarge, 8 process(es) per node, shuffled order (seed 1)" in output
    # (1+2+4+8) nodes x 3 repeats x 3 h = 135 node-hours
    assert "135.0 node-hours at most" in output


def test_requests_are_printed_as_json_and_nothing_is_sent() -> None:
    requests = json.loads(nodesweep("requests", LOCAL).stdout)
    assert [request["ResourceConfig"]["InstanceCount"] for request in requests] == [1, 2, 4, 8]
    assert all(request["HyperParameters"]["sagemaker_program"] == '"train.py"' for request in requests)


def test_schema_accepts_the_shipped_configs() -> None:
    schema = json.loads(nodesweep("config", "schema").stdout)
    jsonschema.validate(yaml.safe_load(Path(LOCAL).read_text()), schema)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plan", "nowhere.yaml"], 2, "no such file"),
        (["plan", LOCAL, "--set", "sweep.colour=1"], 2, "sweep.colour: unknown key"),
        (["plan", LOCAL, "--set", "training.instance_type=ml.local.smal"], 2, "ml.local.small"),
        (["plan", LOCAL, "--set", "sweep.node_counts=[3]"], 3, "8192 does not divide by 3"),
        (["plan", REFERENCE, "--set", "sweep.budget_usd=10"], 3, "sweep.budget_usd: 10.0 is less than"),
        (["requests", LOCAL, "--set", "sweep.node_counts=[3]"], 3, "nothing was sent"),
        (["requests", LOCAL, "--set", "dataset.source=nowhere"], 2, "dataset.source: "),
        (["run"], 2, "Missing argument 'CONFIG'"),
        (["run", LOCAL, "--resume", "yesterday"], 2, "is not a sweep id"),
        (["stop", "yesterday"], 2, "is not a sweep id"),
        (["stop", "local-20261120000000-00000000"], 2, "does not know sweep"),
        (["report"], 2, "one of the two"),
        (["report", "--csv", "nowhere.csv"], 2, "cannot be read"),
        (["explode"], 2, "No such command"),
    ],
)
def test_bad_input_gets_its_message_and_code(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = nodesweep(*arguments)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_anyones_numbers_become_a_report(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(REFERENCE_TIMES)
    result = nodesweep("report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path / "reports"))
    assert result.exit_code == 0
    assert all(speedup in result.output for speedup in ("1.8x", "3.7x", "7.3x"))
    report = json.loads((tmp_path / "reports" / "times" / "report.json").read_text())
    assert [row["speedup"] for row in report["summary"]] == pytest.approx([1, 1.8, 11 / 3, 22 / 3])


def test_bad_row_of_a_table_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(REFERENCE_TIMES + "16,-1\n")
    result = nodesweep("report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path / "reports"))
    assert result.exit_code == 2
    assert "line 6" in result.output
    assert not (tmp_path / "reports").exists()


def test_stop_without_a_platform_has_nothing_to_stop(tmp_path: Path) -> None:
    raw = yaml.safe_load(Path(LOCAL).read_text())
    raw["platform"]["endpoint_url"] = "http://127.0.0.1:9"  # nobody listens on the discard port
    (tmp_path / "local.yaml").write_text(yaml.safe_dump(raw))
    result = nodesweep("stop", "local-20261120000000-00000000", "--config", str(tmp_path / "local.yaml"))
    assert result.exit_code == 0
    assert "http://127.0.0.1:9 is not running, and so is no job" in result.output


def test_reports_that_cannot_be_written_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(REFERENCE_TIMES)
    (tmp_path / "taken").write_text("a file where a directory is wanted")
    result = nodesweep("report", "--csv", str(tmp_path / "times.csv"), "--output", str(tmp_path / "taken" / "x"))
    assert result.exit_code == 1
    assert "taken" in result.output and "Traceback" not in result.output
