"""Files that a user gives the platform: quotas and fault plans, and the messages about invalid
ones."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from sagemaker_emulator.__main__ import ENGINES, main
from sagemaker_emulator.engine import choice
from sagemaker_emulator.faults.plan import kinds, read_fault_plan
from sagemaker_emulator.server import daemon, serving
from sagemaker_emulator.server.backends import BACKENDS
from sagemaker_emulator.server.contract import ServerConfig, ServerStartError
from sagemaker_emulator.settings import SettingsError, digest, read_quotas
from tests.plain import plain


def written(folder: Path, content: Any) -> Path:
    path = folder / "settings.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_quotas(tmp_path: Path) -> None:
    quotas = {"ml.local.small": 8, "ml.local.small for spot training job usage": 0}
    assert read_quotas(written(tmp_path, quotas)) == quotas


@pytest.mark.parametrize(
    "content",
    [
        "{",
        [1],
        {"ml.local.small": -1},
        {"ml.local.small": True},
        {"ml.local.small": "8"},
    ],
)
def test_bad_quotas(tmp_path: Path, content: Any, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(SettingsError) as refused:
        read_quotas(written(tmp_path, content))
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_fault_plan_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("faults:\n  - {fault: throttle, operation: CreateTrainingJob, calls: [1, 2]}\n")
    [rule] = read_fault_plan(path).faults
    assert (rule.fault, rule.operation, rule.calls) == ("throttle", "CreateTrainingJob", [1, 2])  # type: ignore[union-attr]


def test_fault_plan_of_the_readme(tmp_path: Path) -> None:
    readme = (Path(__file__).resolve().parents[3] / "infra/local/README.md").read_text()
    lines = [
        line
        for line in readme.splitlines()
        if line.strip() == "faults:" or line.startswith("      - {fault:")
    ]
    path = tmp_path / "faults.yaml"
    path.write_text(textwrap.dedent("\n".join(lines)))
    assert sorted(rule.fault for rule in read_fault_plan(path).faults) == sorted(kinds())


@pytest.mark.parametrize(
    "content",
    [
        "faults: [",
        [],
        {"faults": [], "rules": []},
    ],
)
def test_bad_fault_files(tmp_path: Path, content: Any, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(SettingsError) as refused:
        read_fault_plan(written(tmp_path, content))
    assert plain(refused.value, folder=tmp_path) == snapshot


CREATE = {"fault": "throttle", "operation": "CreateTrainingJob", "calls": [1, 2]}


@pytest.mark.parametrize(
    "rule",
    [
        5,
        {},
        {"fault": "fire"},
        CREATE | {"operation": "Nope"},
        CREATE | {"service": "ecr"},
        CREATE | {"calls": [0, 2]},
        CREATE | {"calls": [3, 2]},
        CREATE | {"calls": 3},
        CREATE | {"chance": 0.5},
        CREATE | {"fault": "error"},
        {"fault": "pending"},
        {"fault": "pending", "seconds": -1},
        {"fault": "pending", "seconds": "9"},
        {"fault": "internal_error"},
        {"fault": "internal_error", "after_seconds": 1, "at_line": "x"},
        {"fault": "spot_interruption", "at_line": "("},
        {"fault": "algorithm_error", "after_seconds": 1, "node": "host"},
    ],
)
def test_bad_rules(tmp_path: Path, rule: Any, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(SettingsError) as refused:
        read_fault_plan(written(tmp_path, {"faults": [rule]}))
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_every_broken_rule_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_fault_plan(written(tmp_path, {"faults": [CREATE, {}, {"fault": "pending"}]}))
    first, second = str(caught.value).splitlines()
    assert "faults[1].fault" in first
    assert "faults[2].seconds" in second


@pytest.mark.parametrize("option", ["--quotas", "--faults", "--engine=simulated --model"])
def test_bad_file_is_a_bad_argument(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["start", "--state-dir", str(tmp_path), *option.split(), str(tmp_path / "missing")])
    assert ended.value.code == 2
    assert f"{tmp_path / 'missing'} " in capsys.readouterr().err


def served(config: ServerConfig, monkeypatch: pytest.MonkeyPatch) -> ServerConfig:
    """Return the settings of the server that `start` would start."""
    configs: list[ServerConfig] = []
    monkeypatch.setattr(serving, "serve", configs.append)
    monkeypatch.setattr(daemon, "scope_command", lambda environment: [])
    monkeypatch.setattr(
        daemon.subprocess,
        "Popen",
        lambda command, **_: main(command[command.index("sagemaker_emulator") + 1 :]),
    )
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    config.state_dir.mkdir(parents=True, exist_ok=True)
    daemon._spawn(config)
    return configs[0]


def test_every_setting_reaches_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(
        port=4571,
        state_dir=tmp_path / 'with "quotes" and ü',
        owner_pid=7,
        quotas={"ml.local.small for spot training job usage": 0},
        faults_file=tmp_path / "faults.yaml",
        cold_start_seconds=0.1,
        engine="container",
        model_file=tmp_path / "model.yaml",
        time_scale=0.3,
        processing_leaves=tmp_path,
        file_systems={"fs-0123456789abcdef0": tmp_path},
        or_free_port=True,
        registry="127.0.0.1:5000",
    )
    plain = ServerConfig(0, tmp_path)
    assert all(getattr(config, name) != getattr(plain, name) for name in vars(plain)), (
        "a setting without a case"
    )
    assert served(config, monkeypatch) == config
    assert served(plain, monkeypatch) == plain


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"port": 1, "state_dir": "x", "colour": 2}'])
def test_server_that_is_handed_something_else_says_so(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--settings", text])
    assert ended.value.code == 2
    assert "--settings" in capsys.readouterr().err


def test_every_engine_that_can_be_asked_for_has_a_backend() -> None:
    assert {*BACKENDS, "auto"} == set(ENGINES)


def test_settings_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = written(tmp_path, {"ml.local.small": 8, "ml.local.large": 1})
    plan = tmp_path / "faults.json"
    plan.write_text(json.dumps({"faults": [CREATE]}))
    asked: list[ServerConfig] = []
    monkeypatch.setattr(daemon, "start", lambda config: asked.append(config))
    options = ["--quotas", str(quotas), "--quota", "ml.local.large=2", "--faults", str(plan)]
    assert (
        main(["start", "--state-dir", str(tmp_path), *options, "--cold-start-seconds", "1.5"]) == 0
    )
    [config] = asked
    # the option takes precedence
    assert config.quotas == {"ml.local.small": 8, "ml.local.large": 2}
    assert (config.faults_file, config.cold_start_seconds) == (plan, 1.5)
    assert served(config, monkeypatch) == config


def test_simulation_settings_reach_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = written(tmp_path, {"t_compute_seconds": 60})
    asked: list[ServerConfig] = []
    monkeypatch.setattr(daemon, "start", lambda config: asked.append(config))
    options = ["--engine", "simulated", "--model", str(model), "--time-scale", "0.01"]
    options += ["--processing-leaves", str(tmp_path)]
    assert main(["start", "--state-dir", str(tmp_path), *options]) == 0
    [config] = asked
    assert (config.engine, config.model_file, config.time_scale) == ("simulated", model, 0.01)
    assert config.processing_leaves == tmp_path
    assert served(config, monkeypatch) == config


@pytest.mark.parametrize("option", ["--model=m.yaml", "--time-scale=0.5"])
def test_simulation_settings_are_not_for_the_process_engine(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["start", option])
    assert ended.value.code == 2
    assert "--engine simulated" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["-0.1", "1.5", "nan"])
def test_time_scale_is_from_0_to_1(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["start", "--engine=simulated", f"--time-scale={text}"])


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--time-scale=slow", "0 (no waiting) to 1 (real time)"),
        ("--port=http", "0 to 65535"),
        ("--owner-pid=me", "1 or more"),
        ("--cold-start-seconds=soon", "0 or more"),
        ("--quota=ml.local.small=²", "ml.local.small=8"),
    ],
)
def test_option_that_is_no_number_names_what_is_expected(
    option: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["start", option])
    said = capsys.readouterr().err.splitlines()[-1]
    name, _, value = option.partition("=")
    assert name in said and repr(value) in said and said.endswith(expected)


@pytest.mark.parametrize(("running", "asked"), [("process", "simulated"), ("simulated", "process")])
def test_running_server_with_another_engine_is_not_adopted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    running: str,
    asked: str,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(
        daemon, "find_server", lambda _: daemon.RunningServer(1, 2, "http://127.0.0.1:4570")
    )
    monkeypatch.setattr(daemon, "read_status", lambda _: {"running": True, "engine": running})
    with pytest.raises(ServerStartError) as refused:
        daemon.start(ServerConfig(0, tmp_path, engine=asked))
    assert plain(refused.value, folder=tmp_path) == snapshot


@pytest.mark.parametrize("text", ["-1", "inf", "soon"])
def test_cold_start_is_a_number_of_seconds(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["start", f"--cold-start-seconds={text}"])


@pytest.mark.parametrize(
    "changes",
    [{"quotas": {"ml.local.small": 2}}, {"faults_file": Path("/x")}, {"cold_start_seconds": 1.0}],
)
def test_running_server_with_other_settings_is_not_adopted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    snapshot: SnapshotAssertion,
) -> None:
    found = daemon.RunningServer(1, 2, "http://127.0.0.1:4570")
    status = {
        "running": True,
        "quotas": {"ml.local.small": 1},
        "faults_file": None,
        "cold_start_seconds": 0.0,
    }
    monkeypatch.setattr(daemon, "find_server", lambda _: found)
    monkeypatch.setattr(daemon, "read_status", lambda _: status)
    with pytest.raises(ServerStartError) as refused:
        daemon.start(ServerConfig(0, tmp_path, **changes))
    assert plain(refused.value, folder=tmp_path) == snapshot
    assert daemon.start(ServerConfig(0, tmp_path)) == found.endpoint
    assert daemon.start(ServerConfig(0, tmp_path, quotas={"ml.local.small": 1})) == found.endpoint


def test_running_server_with_an_earlier_version_of_the_plan_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    plan = written(tmp_path, {"faults": []})
    status = {"running": True, "faults_file": str(plan), "faults_sha256": digest(plan)}
    monkeypatch.setattr(
        daemon, "find_server", lambda _: daemon.RunningServer(1, 2, "http://127.0.0.1:4570")
    )
    monkeypatch.setattr(daemon, "read_status", lambda _: status)
    assert daemon.start(ServerConfig(0, tmp_path, faults_file=plan)) == "http://127.0.0.1:4570"
    written(tmp_path, {"faults": [CREATE]})
    with pytest.raises(ServerStartError) as refused:
        daemon.start(ServerConfig(0, tmp_path, faults_file=plan))
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_auto_without_containers_adopts_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ServerConfig] = []
    monkeypatch.setattr(daemon, "start", lambda config: asked.append(config))
    monkeypatch.setattr(choice, "choose_engine", lambda *_: ("process", "no podman"))
    assert (
        main(["start", "--state-dir", str(tmp_path), "--engine=auto", "--registry=127.0.0.1:5000"])
        == 0
    )
    assert (asked[0].engine, asked[0].described()["registry"]) == ("process", None)
