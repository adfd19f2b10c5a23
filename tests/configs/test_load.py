from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from configs import models
from configs.load import ConfigError, load_config, parse_config
from configs.models import BenchmarkConfig
from scaling.names import config_digest

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for path in (REPOSITORY / "configs").glob("*.yaml") if path.name != "instances.yaml")


def write(path: Path, raw: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_is_valid(path: Path) -> None:
    assert load_config(path).sweep.node_counts == (1, 2, 4, 8)


def test_every_field_is_described() -> None:
    sections = [
        model
        for model in vars(models).values()
        if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == models.__name__
    ]
    fields = [(model.__name__, name, field) for model in sections for name, field in model.model_fields.items()]
    bare = [
        f"{model}.{name}"
        for model, name, field in fields
        if not field.description
        and not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel))
    ]
    assert bare == []


def test_models_are_frozen(benchmark_config: BenchmarkConfig) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        benchmark_config.sweep.repeats = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("training", {"colour": 1}, r"training\.colour: unknown key; allowed here: .*instance_type"),
        ("sweep", {"node_counts": []}, r"sweep\.node_counts: .*at least 1 item"),
        ("sweep", {"node_counts": [1, 1]}, r"sweep\.node_counts: .*repeat a number"),
        ("sweep", {"node_counts": [0]}, r"sweep\.node_counts\.0: .*greater than or equal to 1 \(got 0\)"),
        ("dataset", {"expectations": []}, r"dataset\.expectations: .*at least 1 item"),
        ("training", {"instance_type": "ml.p3.16xlarg"}, r"training\.instance_type: .*ml\.p3\.16xlarge"),
        ("training", {"hyperparameters": {"b": "{batch}"}}, r"unknown placeholder \['batch'\]; allowed: "),
        ("training", {"hyperparameters": {"sagemaker_program": "x"}}, r"sagemaker_ are set by nodesweep"),
        ("training", {"metric_definitions": {"m": "x=[0-9]+"}}, r"has no group around the number"),
        ("training", {"metric_definitions": {"m": "x=("}}, r"is not a regular expression"),
        ("training", {"distribution": {"kind": "none", "processes_per_node": 2}}, r"use kind 'torch_distributed'"),
        ("platform", {"credentials": "placeholder"}, r"'placeholder' needs an endpoint_url"),
        ("platform", {"autostart": True}, r"autostart needs an endpoint_url on loopback"),
        ("platform", {"role_arn": "role"}, r"platform\.role_arn: .*pattern"),
    ],
)
def test_bad_value_names_its_field(
    raw_config: dict[str, Any], section: str, values: dict[str, Any], message: str
) -> None:
    raw_config[section].update(values)
    with pytest.raises(ConfigError, match=message):
        parse_config(raw_config, origin="bench.yaml")


def test_every_problem_is_named_at_once(raw_config: dict[str, Any]) -> None:
    raw_config["sweep"]["repeats"] = 0
    del raw_config["platform"]["region"]
    with pytest.raises(ConfigError) as caught:
        parse_config(raw_config, origin="bench.yaml")
    assert "sweep.repeats" in str(caught.value) and "platform.region" in str(caught.value)


def test_paths_are_relative_to_the_config_file(tmp_path: Path, raw_config: dict[str, Any]) -> None:
    config = load_config(write(tmp_path / "c.yaml", raw_config))
    assert config.dataset.source == str(tmp_path / "data")
    assert config.image.context == str(tmp_path / "image")


def test_digest_does_not_depend_on_the_place(tmp_path: Path, raw_config: dict[str, Any]) -> None:
    (tmp_path / "other").mkdir()
    here = load_config(write(tmp_path / "c.yaml", raw_config))
    there = load_config(write(tmp_path / "other" / "c.yaml", raw_config))
    assert config_digest(here) == config_digest(there)


def test_overrides_are_read_as_yaml(tmp_path: Path, raw_config: dict[str, Any]) -> None:
    path = write(tmp_path / "c.yaml", raw_config)
    config = load_config(path, ["sweep.node_counts=[1, 4]", "training.seed=7", "report.title=A title"])
    assert (config.sweep.node_counts, config.training.seed, config.report.title) == ((1, 4), 7, "A title")


@pytest.mark.parametrize(
    ("override", "message"),
    [("sweep.repeats", "expected a.b.c=value"), ("name.x=1", "name is a value"), ("a=[", "not valid YAML")],
)
def test_bad_override_is_refused(tmp_path: Path, raw_config: dict[str, Any], override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path / "c.yaml", raw_config), [override])


@pytest.mark.parametrize(("text", "message"), [("a: [", "not valid YAML"), ("- 1", "expected a mapping")])
def test_file_that_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "c.yaml")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "c.yaml")
