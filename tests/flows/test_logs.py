"""`nodesweep logs`, and the last words of a failed program in the terminal, the report and the exit
message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from infra.local.tests.platform_client import wait_for_end, wait_for_phase
from nodesweep.cli.commands.logs import LogFilter, show_logs
from nodesweep.cli.main import main
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PointsMissing, RunFailed
from nodesweep.flows.scaling_benchmark import SweepResult, check_points
from nodesweep.polling import Clock
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.simulated_sweep import measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
USAGE = "train.py: error: unrecognized arguments: --epochs 3"


def bad_usage(job: JobSpec, node: Node, say: Callable[[str], None], stop: Any) -> None:
    """The log of an argparse program, between lines of the toolkit."""
    say("2026-11-22 14:00:04,294 sagemaker-training-toolkit INFO     Invoking user script")
    say("SM_HOSTS=[...]")
    say("Invoking script with the following command:")
    say("python train.py --epochs 3")
    say("password=hunter2")
    say(USAGE)
    for number in range(60):
        say(f"2026-11-22 14:00:04,294 sagemaker-training-toolkit INFO     Waiting {number}")
    raise ValueError(
        'ExecuteUserScriptError:\nExitCode 2\nErrorMessage ""\nCommand "python train.py"'
    )


@pytest.fixture
def failed(
    served: SimpleNamespace, pipeline_config: Configs
) -> Iterator[tuple[BenchmarkConfig, SweepResult]]:
    served.engine.programs['"bad-usage"'] = bad_usage
    config = pipeline_config("bad-usage", sweep={"node_counts": [2]})
    yield config, measure(config)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["logs", *arguments])


@pytest.mark.pages
def test_usage_error_is_in_report_and_exit_message_and_the_whole_log_beside_it(
    failed: tuple[BenchmarkConfig, SweepResult],
) -> None:
    config, result = failed
    with pytest.raises(PointsMissing) as raised:
        check_points(config.sweep, result)
    report = [(result.folder / name).read_text() for name in ("report.html", "report.md")]
    for text in (str(raised.value), *report):
        assert USAGE in text and "Waiting 59" not in text and "hunter2" not in text
    [point] = result.report.points
    assert point.program_error and "training.hyperparameters" in str(point.program_error.advice)
    files = sorted((result.folder / "logs").iterdir())
    assert [path.name.split("_")[1] for path in files] == ["algo-1.log", "algo-2.log"]
    assert "Waiting 59" in files[0].read_text() and "hunter2" not in files[0].read_text()


def test_logs_are_shown_from_the_platform_and_from_the_kept_files_once_it_has_ended(
    failed: tuple[BenchmarkConfig, SweepResult],
    served: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, result = failed
    for path in (result.folder / "logs").iterdir():
        path.unlink()
    from_platform = run(result.sweep_id)
    assert from_platform.exit_code == 0, from_platform.output
    assert from_platform.output.count(USAGE) == 2 and "hunter2" not in from_platform.output
    next((result.folder / "logs").glob("*_algo-2.log")).unlink()
    assert run(result.sweep_id).output == from_platform.output
    gone = {"autostart": True, "endpoint_url": "http://127.0.0.1:9"}
    record = result.folder / "sweep.json"
    record.write_text(record.read_text().replace(served.endpoint, gone["endpoint_url"]).replace(
        '"autostart": false', '"autostart": true'
    ))  # fmt: skip
    assert run(result.sweep_id).output == from_platform.output
    [line] = [
        line for line in run(result.sweep_id, "--rank", "1").output.splitlines() if USAGE in line
    ]
    assert line.split()[1:3] == ["n2-r1-a1", "algo-2"]
    for absent in (("--nodes", "4"), ("--rank", "2"), ("--nodes", "2", "--rank", "9")):
        other = run(result.sweep_id, *absent)
        assert other.exit_code == 1 and result.sweep_id in other.output


def test_followed_log_ends_with_the_sweep_or_at_its_deadline(
    served: SimpleNamespace,
    pipeline_config: Configs,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A sweep without a running process has ended when its last job has ended."""
    from nodesweep.flows.detach import start_detached_sweep

    config = pipeline_config("endless", name="followed", sweep={"node_counts": [1]})
    sweep = start_detached_sweep(config)
    [name] = sweep.job_names
    wait_for_phase(served.sagemaker, name, "Training")
    looks: list[float] = []

    def stop_at_third(seconds: float) -> bool:
        looks.append(seconds)
        if len(looks) == 3:
            served.sagemaker.stop_training_job(TrainingJobName=name)
            wait_for_end(served.sagemaker, name)
        return len(looks) > 200

    with pytest.raises(RunFailed, match="5 s"):
        show_logs(
            config,
            sweep.sweep_id,
            LogFilter(),
            5.0,
            Clock(monotonic=iter((0.0, 9.0)).__next__, wait=lambda _: False),
        )
    show_logs(config, sweep.sweep_id, LogFilter(), 1e9, Clock(wait=stop_at_third))
    assert 3 <= len(looks) <= 200
    assert "n1-r1-a1 algo-1 waiting" in capsys.readouterr().out
