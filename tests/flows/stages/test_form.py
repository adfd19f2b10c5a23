"""A run of a deployment whose config names something that its worker does not allow, in every form
of a config."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, validate
from prefect.flows import load_flow_from_entrypoint

from nodesweep.configs.allowed import LISTS, LOCAL_PLATFORM
from nodesweep.configs.load import ConfigError
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import PRESETS_DIRECTORY, config_from_preset
from nodesweep.configs.settings import settings_schema
from nodesweep.flows.stages import form
from nodesweep.flows.stages.form import config_from_parameters
from tests.test_deployments import REPOSITORY

STRAY = {
    "dataset.source": "/etc",
    "image.context": "/root",
    "training.source_dir": "../../.nodesweep/machine",
    "report.directory": "/etc/cron.d",
    "platform.state_directory": "/var/lib/other",
    "platform.endpoint_url": "http://127.0.0.1:4571",
    "training.environment.X": "${PREFECT_API_AUTH_STRING}",
}


@pytest.fixture(autouse=True)
def strict_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LISTS:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(LOCAL_PLATFORM["platform.endpoint_url"], "http://127.0.0.1:4999")
    monkeypatch.setenv(LOCAL_PLATFORM["platform.state_directory"], "/var/lib/platform")


def nested(field: str, value: str) -> dict[str, Any]:
    """Return the same setting within its whole section, as in the preset."""
    section, _, name = field.partition(".")
    raw = yaml.safe_load((PRESETS_DIRECTORY / "local.yaml").read_text())
    place = raw.setdefault(section, {})
    *parents, last = name.split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return {section: raw[section]}


def whole(field: str, value: str) -> dict[str, Any]:
    raw = yaml.safe_load((PRESETS_DIRECTORY / "local.yaml").read_text())
    return raw | nested(field, value)


@pytest.mark.parametrize("field", STRAY)
@pytest.mark.parametrize("way", ["settings", "section", "variable", "variable as text"])
def test_no_way_of_a_config_goes_past_the_list(
    field: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = STRAY[field]
    config = whole(field, value)
    monkeypatch.setattr(
        form, "_read_variable", lambda name: config if name == "ours" else yaml.dump(config)
    )
    parameters: dict[str, Any] = {
        "settings": {"preset": "local", "settings": {field: value}},
        "section": {"preset": "local", "settings": nested(field, value)},
        "variable": {"config_variable": "ours"},
        "variable as text": {"config_variable": "text"},
    }[way]
    if way.startswith("variable") and field in LOCAL_PLATFORM:
        parameters["settings"] = {field: value}  # else the worker's own platform stands in for it
    with pytest.raises(ConfigError, match=rf"(?m)^  {field}: "):
        config_from_parameters(parameters)


def test_a_cluster_comes_from_a_variable_and_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LISTS:
        monkeypatch.delenv(name, raising=False)
    example = Path(__file__).parents[3] / "examples" / "slurm" / "slurm.yaml"
    monkeypatch.setattr(form, "_read_variable", lambda name: example.read_text(encoding="utf-8"))
    settings = {"platform.partition": "gpu", "platform.node.usd_per_hour": 2.5}
    validate(settings, settings_schema(), Draft202012Validator)
    config = config_from_parameters(
        {"config_variable": "ours", "settings": settings, "node_counts": [1, 2]}
    )
    platform = config.platform.model_dump()
    assert (platform["partition"], platform["node"]["usd_per_hour"]) == ("gpu", 2.5)
    assert config.sweep.node_counts == (1, 2)


@pytest.mark.parametrize("preset", ["../../etc/passwd", "/etc/passwd", "examples/../local"])
def test_a_preset_is_no_path(preset: str) -> None:
    with pytest.raises(ConfigError, match="preset: got"):
        config_from_parameters({"preset": preset})


def test_the_dataset_of_the_form_is_compared_too() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.source: .*'/etc'"):
        config_from_parameters({"preset": "local", "dataset": "/etc"})
    assert config_from_parameters({"preset": "local", "dataset": "data/digits"}).dataset is not None


def test_what_the_worker_brings_runs_with_the_platform_of_the_machine() -> None:
    config = config_from_parameters({"preset": "local"})
    assert config.platform.endpoint_url == "http://127.0.0.1:4999"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_whole_config_is_compared_where_a_worker_runs_it_alone(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller of Prefect's API may have a deployment's form unchecked; a person's own command
    may name what that person can read."""
    config = config_from_preset("local", {"report.directory": "/etc/cron.d"})
    given: Any = config.model_dump(mode="json") if as_json else config
    assert config_from_parameters({"preset": given}).report.directory == "/etc/cron.d"
    monkeypatch.setattr(form, "has_deployment", lambda: True)
    with pytest.raises(ConfigError, match=r"report\.directory: got '/etc/cron\.d'"):
        config_from_parameters({"preset": given})


ENTRYPOINTS = sorted(
    {
        deployment["entrypoint"]
        for deployment in yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())["deployments"]
    }
)


@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
def test_every_deployment_refuses_before_it_asks_anything(
    entrypoint: str, monkeypatch: pytest.MonkeyPatch, no_calls: None
) -> None:
    """Neither the platform nor Prefect, so no slot of a limit is held."""
    flow = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
    function = inspect.unwrap(flow.fn)
    fields: dict[str, Any] = dict.fromkeys(inspect.signature(function).parameters)
    fields |= {"preset": "local", "settings": {"report.directory": "/etc/cron.d"}}
    fields |= {name: "local-20261120191500-1a2b3c4d" for name in flow.parameters.required}
    with pytest.raises(ConfigError, match=r"report\.directory: got '/etc/cron\.d'"):
        function(**fields)


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*_: object, **__: object) -> None:
        raise AssertionError("something was asked")

    monkeypatch.setattr("socket.socket.connect", call)
    monkeypatch.setattr("boto3.Session.client", call)


@pytest.mark.parametrize("sweep", ["../../../../etc/cron.d", "/etc/cron.d/x", "local-2026\n.."])
@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
def test_a_sweeps_id_is_no_path(entrypoint: str, sweep: str) -> None:
    """A folder of report.directory has its name."""
    flow = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
    ids = {"sweep_id", "compare_reference"} & set(flow.parameters.properties)
    needed = {name: "local-20261120191500-1a2b3c4d" for name in flow.parameters.required}
    for name in ids:
        with pytest.raises(Exception, match=name):
            flow.validate_parameters(needed | {name: sweep})
    assert ids or flow.name == "reaper"


def test_paths_are_those_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder of the form begins where the presets are, or where the run is."""
    monkeypatch.setenv("NODESWEEP_ALLOWED_PATHS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = {"report.directory": "out", "training.source_dir": str(tmp_path / "code")}
    config = config_from_parameters({"preset": "local", "settings": settings})
    assert isinstance(config, BenchmarkConfig)
    with pytest.raises(ConfigError, match=r"training\.source_dir: got"):
        config_from_parameters(
            {"preset": "local", "settings": {"training.source_dir": "../.nodesweep"}}
        )
