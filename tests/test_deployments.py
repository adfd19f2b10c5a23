"""prefect.yaml compared with the flows that it names, which the server would check only when a run
starts."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from jsonschema.exceptions import best_match
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.deployments import steps
from prefect.exceptions import ParameterTypeError
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.schema_tools import validate
from prefect.utilities.schema_tools.validation import ValidationError, preprocess_schema
from prefect.variables import Variable

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import ConfigError
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import PRESETS_DIRECTORY, preset_names
from nodesweep.configs.section import MAY_BE_SECRET, Section, marked_fields
from nodesweep.configs.training import Scalar
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages.form import config_from_parameters
from tests.production.form_picture import DIGEST_FILE, digest_of_form

REPOSITORY = Path(__file__).resolve().parents[1]
PREFECT = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
DEPLOYMENTS = {deployment["name"]: deployment for deployment in PREFECT["deployments"]}
SWEEP = "local-20261120191500-1a2b3c4d"
CALLED_BY_COMMANDS = {
    "nodesweep.flows.detach.start_detached_sweep": (
        "nodesweep run --detach; a deployment has a worker that may as well wait"
    ),
}
"""Flows that are not deployed, and why not."""

every_deployment = pytest.mark.parametrize("name", DEPLOYMENTS)


def flow_of(name: str) -> Flow[..., Any]:
    return load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"], use_placeholder_flow=False)


def schema_of(flow: Flow[..., Any]) -> dict[str, Any]:
    """Return the schema as the server gets it, from which the UI builds its form."""
    return flow.parameters.model_dump_for_openapi()


@cache
def form() -> dict[str, Any]:
    """Return the schema of scaling_benchmark as the server prepares it for validate()."""
    return preprocess_schema(schema_of(scaling_benchmark))


def flows_of_the_house() -> set[str]:
    """Return the entrypoint of every function under flows/ that is decorated with @flow."""
    found = set()
    for path in sorted((REPOSITORY / "flows").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
            if isinstance(node, ast.FunctionDef) and any(map(_is_flow, node.decorator_list)):
                module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
                found.add(f"nodesweep.{module}.{node.name}")
    return found


def _is_flow(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id == "flow"


@every_deployment
def test_entrypoint_imports_and_default_parameters_fit(name: str) -> None:
    flow, parameters = flow_of(name), DEPLOYMENTS[name].get("parameters", {})
    schema = schema_of(flow)
    assert set(parameters) <= set(schema["properties"]), (
        "the server accepts unknown names and the run fails"
    )
    # Without raise_on_error, the schema is not compared with the meta-schema, which takes 0.3 s.
    assert validate(parameters, schema, preprocess=True, ignore_required=True) == []
    required = {field: SWEEP for field in schema.get("required", ())}
    flow.validate_parameters(required | parameters)


@every_deployment
def test_deployment_has_a_pool_a_version_and_checked_parameters(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    assert deployment["work_pool"]["name"] == "nodesweep"
    assert deployment["version"] == "{{ revision.stdout }}" and PREFECT["build"]
    assert deployment["tags"] == ["nodesweep"] and deployment["description"]
    assert deployment["enforce_parameter_schema"] is True


@every_deployment
def test_schedules_parse_and_begin_switched_off(name: str) -> None:
    for schedule in DEPLOYMENTS[name].get("schedules", ()):
        timing = {
            key: value for key, value in schedule.items() if key in ("cron", "interval", "timezone")
        }
        (CronSchedule if "cron" in timing else IntervalSchedule).model_validate(timing)
        assert schedule["slug"] and schedule["active"] is False


def test_nightly_run_refuses_a_second_one_and_has_a_time_zone() -> None:
    nightly = DEPLOYMENTS["nightly"]
    assert nightly["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert [schedule["timezone"] for schedule in nightly["schedules"]] == ["UTC"]


def test_every_night_does_the_same_amount_of_work() -> None:
    """Sweeps with different numbers of steps share no trend."""
    nightly = config_from_parameters(DEPLOYMENTS["nightly"]["parameters"]).training
    assert nightly.baseline_seconds is None and nightly.hyperparameters["epochs"] == 1


def test_nothing_is_deployed_without_a_place_for_the_code() -> None:
    """Prefect would use an unset variable's placeholder as the folder name."""
    [build] = PREFECT["build"]
    script = build["prefect.deployments.steps.run_shell_script"]["script"]

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script], env=variables, capture_output=True, text=True, check=False
        )

    refused = run(NODESWEEP_REVISION="abc")
    assert refused.returncode != 0 and "NODESWEEP_HOME" in refused.stderr
    for place in ("NODESWEEP_HOME", "NODESWEEP_REPOSITORY"):
        assert run(NODESWEEP_REVISION="abc", **{place: "x"}).stdout == "abc\n"


@pytest.mark.parametrize("way", ["checkout", "git_clone"])
def test_pull_steps_are_prefects(way: str) -> None:
    for step in PREFECT["definitions"][way]:
        [(name, inputs)] = step.items()
        function = getattr(steps, name.rpartition(".")[2])
        assert name.startswith("prefect.deployments.steps.")
        signature(function).bind(**{key: value for key, value in inputs.items() if key != "id"})


def test_every_flow_is_deployed_or_says_why_not() -> None:
    deployed = {deployment["entrypoint"] for deployment in DEPLOYMENTS.values()}
    assert deployed | set(CALLED_BY_COMMANDS) == flows_of_the_house()
    assert not deployed & set(CALLED_BY_COMMANDS)


def test_every_flow_is_there_once_under_its_name() -> None:
    flows = [load_flow_from_entrypoint(name) for name in sorted(flows_of_the_house())]
    assert len({flow.name for flow in flows}) == len(flows) == 6


@every_deployment
def test_every_field_of_the_form_has_its_help(name: str) -> None:
    properties = schema_of(flow_of(name))["properties"]
    assert [field for field, schema in properties.items() if not schema.get("description")] == []


def test_choices_of_the_form_are_the_configs_own() -> None:
    properties = schema_of(scaling_benchmark)["properties"]
    assert properties["preset"]["enum"] == preset_names()
    assert properties["instance_type"]["enum"] == sorted(load_catalogue().names())
    training = BenchmarkConfig.model_json_schema()["$defs"]["TrainingConfig"]["properties"]
    assert set(properties["distribution"]["enum"]) == set(
        training["distribution"]["discriminator"]["mapping"]
    )


def test_bounds_of_the_form_are_the_configs_own() -> None:
    properties = schema_of(scaling_benchmark)["properties"]
    sweep = BenchmarkConfig.model_json_schema()["$defs"]["SweepConfig"]["properties"]
    for bound in ("minimum", "maximum"):
        assert properties["repeats"][bound] == sweep["repeats"][bound]
        assert properties["node_counts"]["items"][bound] == sweep["node_counts"]["items"][bound]


@pytest.mark.parametrize("preset", preset_names())
def test_a_blank_field_says_what_the_preset_has(preset: str) -> None:
    config = config_from_parameters({"preset": preset})
    dataset = config.dataset.source if config.dataset is not None else "none"
    has = {
        "instance_type": ", ".join(dict.fromkeys(config.instance_types)),
        "node_counts": [*config.sweep.node_counts],
        "repeats": config.sweep.repeats,
        "distribution": config.training.distribution.kind,
        "dataset": dataset.removeprefix(f"{PRESETS_DIRECTORY}/"),
        "budget_usd": "none" if config.sweep.budget_usd is None else f"{config.sweep.budget_usd:g}",
    }
    properties = schema_of(scaling_benchmark)["properties"]
    assert {field: blank_value(properties[field], preset) for field in has} == {
        field: str(value) for field, value in has.items()
    }


def blank_value(schema: dict[str, Any], preset: str) -> str | None:
    """Return the value of a blank field with this preset, according to the field's help."""
    words = schema["description"].rpartition("Blank: ")[2]
    found = re.findall(r"(?:^|, )(?:else )?`([^`]+)`(?: \(([^)]+)\))?", words)
    by_preset = {name: value for value, names in found for name in names.split(", ")}
    return by_preset.get(preset.removeprefix("examples/"), by_preset.get(""))


def test_the_picture_of_the_form_has_the_help_of_today() -> None:
    assert DIGEST_FILE.read_text().strip() == digest_of_form(), (
        "docs/prefect-form.png is old; NODESWEEP_WRITE_SCREENSHOTS=1 .venv/bin/pytest"
        " tests/production/test_prefect_ui.py makes it anew"
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"preset": "nightly"}, "'nightly' is not one of"),
        ({"instance_type": "ml.m5"}, "'ml.m5' is not one of"),
        ({"node_counts": []}, "should be non-empty"),
        ({"node_counts": [1, 0]}, "0 is less than the minimum of 1"),
        ({"repeats": 51}, "51 is greater than the maximum of 50"),
        ({"distribution": "ddp"}, "'ddp' is not one of"),
        ({"budget_usd": 0}, "0 is less than or equal to the minimum of 0"),
        ({"repeats": "three"}, "'three' is not"),
        ({"settings": {"training.environment": {"HF_TOKEN": "s3cr3t"}}}, "does not match"),
        ({"settings": {"training.environment.HF_TOKEN": "s3cr3t"}}, "does not match"),
        ({"settings": {"sweep.node_count": [1]}}, "'sweep.node_count' was unexpected"),
        ({"settings": {"sweep.repeats": 0}}, "0 is less than the minimum of 1"),
        ({"settings": {"sweep": {"node_count": [1]}}}, "'node_count' was unexpected"),
        ({"config_variable": ""}, "non-empty|too short"),
        ({"timeout_hours": 0}, "0 is less than or equal to the minimum of 0"),
    ],
)
def test_server_refuses_an_invalid_value_and_names_it(
    parameters: dict[str, Any], message: str
) -> None:
    error = best_match(validate(parameters, form(), preprocess=False))
    assert error is not None and re.search(message, error.message)


def spellings(name: str, mapping: dict[str, str]) -> list[dict[str, Any]]:
    """Return the settings that give a mapping to a field: as a whole, by its keys, and within each
    enclosing section."""
    parts, value = name.split("."), mapping
    found: list[dict[str, Any]] = [{f"{name}.{key}": text for key, text in mapping.items()}]
    for depth in range(len(parts), 0, -1):
        found.append({".".join(parts[:depth]): value})
        value = {parts[depth - 1]: value}  # type: ignore[dict-item]
    return found


@pytest.mark.parametrize("name", marked_fields(BenchmarkConfig, MAY_BE_SECRET))
def test_server_refuses_a_secret_in_every_mapping_that_may_hold_one(name: str) -> None:
    """This holds at any depth of the setting; an empty mapping is allowed."""

    def problems(settings: dict[str, Any]) -> int:
        return len(validate({"settings": settings}, form(), preprocess=False))

    with_secret, without = spellings(name, {"INDEX": "s3cr3t"}), spellings(name, {})
    for settings, harmless in zip(with_secret, without, strict=True):
        assert problems(settings) > problems(harmless)
    assert problems({name: {}}) == 0


def test_every_mapping_of_texts_is_closed_or_known_to_be_open() -> None:
    """A new mapping is treated as secret until it is listed here."""
    open_mappings = {"training.metric_definitions", "training.tags", "training.training_plan_arns"}
    closed = {*marked_fields(BenchmarkConfig, MAY_BE_SECRET)}
    assert {*text_mappings(BenchmarkConfig)} == open_mappings | closed


def text_mappings(section: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        for kind in kinds_of(field.annotation):
            if get_origin(kind) is dict and str in kinds_of(get_args(kind)[1]):
                if Scalar not in kinds_of(get_args(kind)[1]):
                    yield prefix + name
            elif isinstance(kind, type) and issubclass(kind, Section):
                yield from text_mappings(kind, f"{prefix}{name}.")


def kinds_of(annotation: Any) -> set[Any]:
    return {annotation}.union(*map(kinds_of, get_args(annotation)))


def test_a_form_takes_a_secret_as_the_name_of_a_variable_of_the_worker() -> None:
    for settings in (
        {"training.environment": {"HF_TOKEN": "${HF_TOKEN}"}},
        {"training.environment.HF_TOKEN": "${HF_TOKEN}"},
    ):
        assert validate({"settings": settings}, form(), preprocess=False) == []
        assert config_from_parameters({"settings": settings}).training.environment == {
            "HF_TOKEN": "${HF_TOKEN}"
        }


def test_server_and_run_refuse_bounds() -> None:
    with pytest.raises(ValidationError, match="repeats"):
        validate({"repeats": 0}, schema_of(scaling_benchmark), raise_on_error=True, preprocess=True)
    with pytest.raises(ParameterTypeError, match="repeats"):
        scaling_benchmark.validate_parameters({"repeats": 0})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"preset": "no-such"}, "preset: got 'no-such'; .* examples/g5_fsx_vpc, "),
        ({"node_counts": [2, 2]}, r"sweep.node_counts: .*\[2, 2\]"),
        (
            {"settings": {"sweep.node_count": [1]}},  # a server without the schema
            "sweep.node_count: .* node_counts, ",
        ),
        (
            {"settings": {"platform.endpoint_url": "http://example.com"}},
            "autostart .* endpoint_url",
        ),
        ({"settings": {"name.first": 1}}, "name is a value"),
    ],
)
def test_what_the_schema_cannot_see_is_a_config_error(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_parameters({"preset": "local"} | parameters)


def test_form_changes_the_preset_and_settings_win() -> None:
    fields = {
        "node_counts": [4, 2],
        "repeats": 3,
        "instance_type": "ml.local.large",
        "budget_usd": 5,
    }
    config = config_from_parameters({"preset": "local", **fields, "settings": {"sweep.repeats": 2}})
    assert (config.sweep.node_counts, config.sweep.repeats, config.sweep.budget_usd) == (
        (2, 4),
        2,
        5,
    )
    assert config.training.instance_type == "ml.local.large"
    assert config.dataset == config_from_parameters({"preset": "local"}).dataset


def test_a_prefect_variable_may_hold_the_config(prefect: None) -> None:
    """The config is YAML or JSON text, or the JSON into which the UI converts it."""
    text = (PRESETS_DIRECTORY / "local.yaml").read_text().replace("name: local", "name: ours")
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    local = config_from_parameters({"preset": "local", "repeats": 2})
    for value in (text, json.dumps(yaml.safe_load(text)), yaml.safe_load(text)):
        Variable.set("ours", value, overwrite=True)
        config = config_from_parameters(
            {"config_variable": "ours", "preset": "search_mlp_p3", "repeats": 2}
        )
        assert config == local.model_copy(update={"name": "ours"})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "config_variable: .* 'broken'"),
        ("name: [", "variable broken .*YAML"),
        ("three words only", "variable broken: .*, got a string"),
        (3, "variable broken: .*, got a whole number"),
        ({"name": "x"}, "variable broken .* benchmark config:"),
    ],
)
def test_a_variable_that_holds_none_is_a_config_error(
    prefect: None, value: Any, message: str
) -> None:
    Variable.set("broken", value, overwrite=True) if value is not None else Variable.unset("broken")
    with pytest.raises(ConfigError, match=message):
        config_from_parameters({"config_variable": "broken"})
