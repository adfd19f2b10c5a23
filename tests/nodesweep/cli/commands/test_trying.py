"""`--try best` of `plan` and `run`: the change that is tried, its cost, and the reasons for trying
none."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.commands.trying import words_of_trial
from nodesweep.cli.inputs import command_of_run
from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.errors import RunFailed
from nodesweep.scaling import names
from nodesweep.scaling.analysis.step_budget import MissingParts
from nodesweep.scaling.outcome.attainment import ATTAINED
from nodesweep.scaling.report import analyse
from nodesweep.scaling.secrets import hide_in_config
from tests.nodesweep.scaling.instances.test_tried import FASTER, SECONDS, ran
from tests.plain import plain

Configs = Callable[..., Path]
AT = datetime(2026, 1, 5, tzinfo=UTC)
ON_A_GPU = MissingParts(nodes=1, n=3, reason="it used a GPU")
LATER = datetime(2026, 1, 6, tzinfo=UTC)


@pytest.fixture
def config_file(tmp_path: Path, make_config: Callable[..., BenchmarkConfig]) -> Configs:
    """Return a factory of config files whose script gets `given`; the reports are next to them."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part.csv").write_text("label\n1\n")
    (tmp_path / "reports").mkdir()

    def make(given: dict[str, Any] | None = None, **sections: Any) -> Path:
        passed = {"num_workers": 2} if given is None else given
        training = {"hyperparameters": passed, "batch": None, "learning_rate": None}
        sweep = {"node_counts": [1, 2, 4], "repeats": 3, **sections.pop("sweep", {})}
        config = make_config(
            dataset={"source": str(tmp_path / "data"), "format": "csv"},
            image={"uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"},
            training={**training, **sections.pop("training", {})},
            report={"directory": str(tmp_path / "reports")},
            sweep=sweep,
            **sections,
        )
        raw = config.model_dump(mode="json", exclude_defaults=True)
        path = tmp_path / "bench.yaml"
        path.write_text(yaml.safe_dump(raw))
        return path

    return make


def write_sweep(
    path: Path,
    seconds: dict[int, tuple[float, float]] = SECONDS,
    at: datetime = AT,
    contended: Collection[int] = (),
    **changes: Any,
) -> str:
    """Write the folder of a sweep of this config whose time was split into parts; return the
    sweep's ID."""
    config = load_config(path)
    sweep = names.sweep_id(config, at)
    outcomes = [
        replace(each, utilisation={ATTAINED: 50.0}) if each.nodes in contended else each
        for each in ran("", seconds, config.sweep.repeats)
    ]
    report = analyse(sweep, config, None, outcomes, None, {}, at)
    written = report.model_copy(update=changes).model_dump(mode="json")
    record = {"config": hide_in_config(config), "inputs": {}, "provenance": {}}
    folder = Path(config.report.directory) / sweep
    folder.mkdir()
    for name, body in (("sweep.json", record), ("report.json", written)):
        (folder / name).write_bytes(names.pretty_json(body))
    return sweep


def nodesweep(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_a_plan_shows_the_change_its_prediction_and_the_cost(
    config_file: Configs, snapshot: SnapshotAssertion, tmp_path: Path
) -> None:
    path = config_file()
    sweep = write_sweep(path)
    done = nodesweep("plan", path, "--try", "best")
    assert done.exit_code == 0, done.output
    assert plain(done.stderr.replace(sweep, "SWEEP"), folder=tmp_path) == snapshot
    rows = [line.split()[1:3] for line in done.stdout.splitlines() if "  loader-workers " in line]
    assert sorted(nodes for _, nodes in rows) == ["1", "1", "1", "2", "2", "2", "4", "4", "4"]
    assert "18 jobs" in done.stdout and "cost bound: " in done.stdout


def test_nodes_that_only_the_config_describes_can_be_tried(
    config_file: Configs, tmp_path: Path
) -> None:
    path = config_file()
    raw = yaml.safe_load(path.read_text())
    raw["training"] = {
        "source_dir": str(tmp_path), "entry_point": "train.py", "instance_type": "fat-node",
        "max_runtime_seconds": 3600, "hyperparameters": {"num_workers": 2},
        "distribution": {"kind": "torch_distributed", "processes_per_node": 1},
    }  # fmt: skip
    raw["platform"] = {
        "launcher": "slurm", "cluster": "alps", "folder": str(tmp_path / "shared"),
        "node": {"cores": 8, "gpus": 1, "usd_per_hour": 2.0},
    }  # fmt: skip
    path.write_text(yaml.safe_dump({key: each for key, each in raw.items() if key != "image"}))
    (tmp_path / "train.py").touch()
    write_sweep(path)
    done = nodesweep("plan", path, "--try", "best")
    assert done.exit_code == 0, done.output
    assert "to try, according to sweep" in done.stderr


def test_the_newest_finished_sweep_decides_unless_another_is_named(config_file: Configs) -> None:
    path = config_file()
    old = write_sweep(path)
    idle = {nodes: (compute, 0.0) for nodes, (compute, _) in SECONDS.items()}
    new = write_sweep(path, idle, LATER)
    running = Path(load_config(path).report.directory) / names.sweep_id(
        load_config(path), datetime(2026, 1, 7, tzinfo=UTC)
    )
    running.mkdir()
    (running / "sweep.json").write_bytes((running.parent / old / "sweep.json").read_bytes())
    nothing = nodesweep("plan", path, "--try", "best")
    assert nothing.exit_code == 0 and new in nothing.stderr and nothing.stdout == ""
    named = nodesweep("plan", path, "--try", "best", "--from", old[: len(old) - 10])
    assert named.exit_code == 0 and "loader-workers" in named.stdout
    refused = nodesweep("plan", path, "--try", "best", "--from", running.name)
    assert refused.exit_code == 2 and "no report" in refused.stderr


def test_a_trial_that_cannot_be_judged_says_so_first_and_more_repeats_go_by_the_same_sweep(
    config_file: Configs, snapshot: SnapshotAssertion, tmp_path: Path
) -> None:
    path = config_file(sweep={"repeats": 1})
    sweep = write_sweep(path)
    once = nodesweep("plan", path, "--try", "best")
    assert once.exit_code == 0, once.output
    assert plain(once.stderr.replace(sweep, "SWEEP"), folder=tmp_path) == snapshot
    more = ("plan", path, "--try", "best", "--set", "sweep.repeats=3")
    for command in (more, (*more, "--from", sweep)):
        thrice = nodesweep(*command)
        assert thrice.exit_code == 0, thrice.output
        assert sweep in thrice.stderr and "repeats" not in thrice.stderr
        assert "18 jobs" in thrice.stdout
    assert nodesweep("plan", path, "--try", "best", "--set", "training.seed=9").exit_code == 2


REFUSED: dict[str, tuple[int, dict[str, Any], dict[str, Any] | None]] = {
    "no sweep": (2, {}, None),
    "no parts": (2, {}, {"step_budget": None, "remedies": None, "missing_parts": (ON_A_GPU,)}),
    "an older version": (2, {}, {"step_budget": None, "remedies": None}),
    "its baseline has no parts": (2, {}, {"remedies": None, "missing_parts": (ON_A_GPU,)}),
    "its baseline was contended": (2, {}, {"contended": [1]}),
    "only the script can": (0, {"given": {"workers": 2}}, {}),
    "already as predicted": (0, {"given": {"num_workers": 64}, "seconds": FASTER}, {}),
    "an unknown number of steps": (2, {"training": {"baseline_seconds": 60}}, {}),
    "types": (2, {"sweep": {"instance_types": ["ml.m5.xlarge", "ml.m5.2xlarge"]}}, None),
}  # fmt: skip


@pytest.mark.parametrize(("code", "sections", "changes"), REFUSED.values(), ids=REFUSED)
def test_where_nothing_can_be_tried_it_says_why(
    code: int,
    sections: dict[str, Any],
    changes: dict[str, Any] | None,
    config_file: Configs,
    snapshot: SnapshotAssertion,
    tmp_path: Path,
) -> None:
    seconds = sections.get("seconds", SECONDS)
    path = config_file(**{name: own for name, own in sections.items() if name != "seconds"})
    sweep = "" if changes is None else write_sweep(path, seconds, **changes)
    done = nodesweep("run", path, "--try", "best")
    assert done.exit_code == code
    assert plain(done.stderr.replace(sweep or "none", "SWEEP"), folder=tmp_path) == snapshot


def test_the_runs_of_a_sized_sweep_are_tried_in_as_many_steps(config_file: Configs) -> None:
    path = config_file(training={"baseline_seconds": 60})
    sweep = write_sweep(path, sized_steps=1234)
    done = nodesweep("plan", path, "--try", "best", "--from", sweep)
    assert done.exit_code == 0, done.output
    assert "each job trains for 1234 steps" in done.stdout
    assert "18 jobs" in done.stdout


def test_a_sweep_of_another_config_and_a_source_without_a_trial_are_refused(
    config_file: Configs,
) -> None:
    other = write_sweep(config_file({"num_workers": 8}))
    path = config_file()
    refused = nodesweep("plan", path, "--try", "best", "--from", other)
    assert refused.exit_code == 2 and "a different config" in refused.stderr
    assert nodesweep("plan", path, "--from", other).exit_code == 2


def test_an_unreadable_report_is_named(config_file: Configs) -> None:
    path = config_file()
    sweep = write_sweep(path)
    (Path(load_config(path).report.directory) / sweep / "report.json").write_text("{")
    refused = nodesweep("plan", path, "--try", "best", "--from", sweep)
    assert refused.exit_code == 2 and "report.json" in refused.stderr
    assert nodesweep("plan", path, "--try", "best").exit_code == 2


def test_a_run_measures_it_like_any_sweep_and_names_the_command_to_resume(
    config_file: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config_file()
    sweep = write_sweep(path)
    ran_with: dict[str, Any] = {}

    @contextmanager
    def session(platform: PlatformConfig, **options: Any) -> Iterator[PlatformConfig]:
        ran_with.update(options)
        yield platform

    def run(flow: Any, config: BenchmarkConfig, **begun: Any) -> None:
        ran_with.update(begun, config=config)
        raise RunFailed("enough")

    monkeypatch.setattr("nodesweep.cli.session.flow_session", session)
    monkeypatch.setattr("nodesweep.cli.session.run_flow", run)
    done = nodesweep("run", path, "--try", "best", "--from", sweep)
    assert done.exit_code == 1 and "enough" in done.stderr
    assert ran_with["config"].arm_names == ("base", "loader-workers")
    assert not ran_with["resume"]
    command = ran_with["view_options"].resume_command
    assert f"--try best --from {sweep}" in command
    assert names.config_digest(ran_with["config"]) != names.config_digest(load_config(path))


@pytest.mark.parametrize("given", [{"num_workers": 2}, {"workers": 2}])
def test_a_run_ends_with_the_command_that_tries_its_best_prediction(
    given: dict[str, int], config_file: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config_file(given)
    config = load_config(path)
    sweep = names.sweep_id(config, AT)
    report = analyse(sweep, config, None, ran("", SECONDS), None, {}, AT)
    result = SimpleNamespace(report=report, folder=Path(config.report.directory) / sweep)
    monkeypatch.setattr("nodesweep.cli.session.flow_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr("nodesweep.cli.session.run_flow", lambda *_, **__: result)
    monkeypatch.setattr("nodesweep.flows.scaling_benchmark.check_points", lambda *_, **__: None)
    done = nodesweep("run", path)
    assert done.exit_code == 0, done.output
    command = f"nodesweep run {path} --try best --from {sweep}"
    assert (command in done.stderr) is ("num_workers" in given)


def test_over_the_budget_it_is_refused_before_it_runs(config_file: Configs) -> None:
    path = config_file(sweep={"budget_usd": 0.5})
    write_sweep(path)
    done = nodesweep("run", path, "--try", "best")
    assert done.exit_code == 3, done.output
    assert "budget" in done.stderr


def test_json_has_one_line_on_the_choice(config_file: Configs) -> None:
    path = config_file({"workers": 2})
    sweep = write_sweep(path)
    done = nodesweep("run", path, "--try", "best", "--log-format", "json")
    [line] = [json.loads(each) for each in done.stderr.splitlines()]
    assert (done.exit_code, line["event"]) == (0, "nothing-to-try") and sweep in line["text"]


def test_a_resumed_trial_is_the_same_one() -> None:
    words = words_of_trial("best", "bench-1")
    assert command_of_run(Path("bench.yaml"), (), None, words).endswith(
        "run bench.yaml --try best --from bench-1"
    )
    assert words_of_trial(None, None) == []
