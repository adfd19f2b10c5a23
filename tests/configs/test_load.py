from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs import models
from nodesweep.configs.load import ConfigError, load_config, parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import WITH_SECRETS
from nodesweep.scaling.names import config_digest
from tests.plain import plain

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = sorted(
    path for path in (REPOSITORY / "configs").glob("*.yaml") if path.name != "instances.yaml"
)


def write(path: Path, raw: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_is_valid(path: Path) -> None:
    assert load_config(path).sweep.node_counts[:2] == (1, 2)


def test_every_field_is_described() -> None:
    sections = [
        model
        for model in vars(models).values()
        if isinstance(model, type)
        and issubclass(model, BaseModel)
        and model.__module__ == models.__name__
    ]
    fields = [
        (model.__name__, name, field)
        for model in sections
        for name, field in model.model_fields.items()
    ]
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
    ("section", "values"),
    [
        ("training", {"colour": 1}),
        ("sweep", {"node_counts": []}),
        ("sweep", {"node_counts": [1, 1]}),
        ("sweep", {"node_counts": [0]}),
        ("dataset", {"expectations": []}),
        ("training", {"instance_type": "ml.p3.16xlarg"}),
        ("training", {"hyperparameters": {"b": "{batch}"}}),
        ("training", {"hyperparameters": {"sagemaker_program": "x"}}),
        ("training", {"metric_definitions": {"m": "x=[0-9]+"}}),
        ("training", {"metric_definitions": {"m": "x=("}}),
        ("training", {"distribution": {"kind": "none", "processes_per_node": 2}}),
        ("platform", {"credentials": "platform"}),
        ("platform", {"autostart": True}),
        ("platform", {"role_arn": "role"}),
        ("training", {"entry_point": ""}),
        ("report", {"parity": {"tolerance": -1}}),
        ("report", {"recommendation": {"min_efficiency": 0}}),
        ("report", {"recommendation": {"min_efficiency": 1.1}}),
        ("report", {"recommendation": {"min_doubling_ratio": 2.5}}),
        ("report", {"recommendation": {"budget_usd_per_run": 0}}),
        ("report", {"recommendation": {"deadline_seconds": 0}}),
        ("report", {"recommendation": {"hour_value_usd": 0}}),
        ("report", {"recommendation": {"hour_value_usd": True}}),
        ("report", {"recommendation": {"hour_value_usd": 4, "deadline_seconds": 60}}),
        ("sweep", {"node_counts": "1,2,4"}),
        ("sweep", {"instance_types": "ml.m5.large", "budget_usd": [None]}),
        ("sweep", {"variants": {"a": 1}, "max_parallel_jobs": None}),
        ("training", {"hyperparameters": {"epochs": "{epoch}{step}{nodes}"}}),
        ("training", {"distribution": {"kind": "x", "a": 1}}),
        ("training", {"vpc": {"subnets": [], "security_group_ids": ["sg-1"] * 6}}),
    ],
)
def test_bad_value_names_its_field(
    raw_config: dict[str, Any], section: str, values: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    raw_config.setdefault(section, {}).update(values)
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="bench.yaml")
    assert str(refused.value) == snapshot


def test_a_refused_item_is_told_once(raw_config: dict[str, Any]) -> None:
    raw_config["sweep"] = {"node_counts": [0]}
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="bench.yaml")
    assert str(refused.value).count("node_counts") == 1, refused.value


@pytest.mark.parametrize(
    ("section", "values", "field"),
    [
        (
            "training",
            {"learning_rate": {"value": float("inf"), "rule": "none"}},
            "training.learning_rate.value",
        ),
        ("training", {"hyperparameters": {"x": float("nan")}}, "training.hyperparameters.x"),
        ("sweep", {"budget_usd": float("inf")}, "sweep.budget_usd"),
        ("dataset", {"max_age_days": float("inf")}, "dataset.max_age_days"),
        (
            "dataset",
            {"expectations": [{"type": "e", "kwargs": {"v": [{"x": float("nan")}]}}]},
            "expectations.0.kwargs",
        ),
        ("report", {"parity": {"target_metric": float("nan")}}, "report.parity.target_metric"),
    ],
)
def test_infinities_and_nan_are_refused(
    raw_config: dict[str, Any], section: str, values: dict[str, Any], field: str
) -> None:
    raw_config.setdefault(section, {}).update(values)
    with pytest.raises(ConfigError, match=re.escape(field)):
        parse_config(raw_config, origin="bench.yaml")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1:1",
        "http://",
        "http://:4570",
        "http://127.0.0.1:port",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:0",
        "http://[::1",
        "http://127.0.0 .1:1",
        "http://127.0.0.1:1?x=1",
        "http://127.0.0.1:1#x",
        pytest.param("http://somebody:secret@127.0.0.1:1", id="password"),
    ],
)
def test_an_endpoint_that_is_no_plain_url_is_refused(
    raw_config: dict[str, Any], url: str, snapshot: SnapshotAssertion
) -> None:
    raw_config["platform"]["endpoint_url"] = url
    with pytest.raises(ConfigError) as caught:
        parse_config(raw_config, origin="bench.yaml")
    assert str(caught.value) == snapshot
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://vpce-1.sagemaker.example:8443", "http://[::1]:4570", "http://host/path"]
)
def test_other_endpoints_are_taken_as_they_are(raw_config: dict[str, Any], url: str) -> None:
    raw_config["platform"]["endpoint_url"] = url
    assert parse_config(raw_config, origin="bench.yaml").platform.endpoint_url == url


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:4570", True),
        ("http://127.1.2.3:4570", True),
        ("http://localhost:4570", True),
        ("http://127.0.0.1", False),
        ("https://127.0.0.1:4570", False),
        ("http://127.evil.com:1", False),
        ("http://localhost.evil.com:1", False),
        ("http://10.0.0.1:4570", False),
    ],
)
def test_autostart_is_for_a_port_on_loopback(
    raw_config: dict[str, Any], url: str, allowed: bool, snapshot: SnapshotAssertion
) -> None:
    raw_config["platform"].update(endpoint_url=url, autostart=True)
    if allowed:
        assert parse_config(raw_config, origin="bench.yaml").platform.autostart
    else:
        with pytest.raises(ConfigError) as refused:
            parse_config(raw_config, origin="bench.yaml")
        assert str(refused.value) == snapshot


def test_an_unknown_instance_type_is_named_beside_other_problems(
    raw_config: dict[str, Any],
) -> None:
    raw_config["training"]["instance_type"] = "ml.p3.16xlarg"
    raw_config["sweep"]["repeats"] = 0
    with pytest.raises(ConfigError) as caught:
        parse_config(raw_config, origin="bench.yaml")
    assert "ml.p3.16xlarge" in str(caught.value) and "sweep.repeats" in str(caught.value)


@pytest.mark.parametrize(
    "raw", [None, [], {"training": None}, {"training": {"instance_type": 3}}, {1: 2}]
)
def test_what_is_no_config_at_all_is_refused(raw: Any, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(raw, origin="bench.yaml")
    assert str(refused.value) == snapshot


def test_what_the_report_judges_by_unless_told_otherwise(benchmark_config: BenchmarkConfig) -> None:
    report = benchmark_config.report
    assert report.parity.model_dump() == {"tolerance": 0.02, "target_metric": None}
    assert report.recommendation.model_dump() == {
        "min_efficiency": 0.75,
        "min_doubling_ratio": 1.5,
        "budget_usd_per_run": None,
        "deadline_seconds": None,
        "hour_value_usd": None,
    }


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
    config = load_config(
        path, ["sweep.node_counts=[1, 4]", "training.seed=7", "report.title=A title"]
    )
    assert (config.sweep.node_counts, config.training.seed, config.report.title) == (
        (1, 4),
        7,
        "A title",
    )


def test_an_override_fills_an_empty_section(tmp_path: Path, raw_config: dict[str, Any]) -> None:
    raw_config["image"] = None
    config = load_config(
        write(tmp_path / "c.yaml", raw_config),
        ["image.context=here", "report.parity.tolerance=0.1"],
    )
    assert (config.image.context, config.report.parity.tolerance) == (str(tmp_path / "here"), 0.1)


@pytest.mark.parametrize(
    "override",
    [
        "sweep.repeats",
        "name.x=1",
        "a=[",
        "a={x: 1, x: 2}",
        "a=" + "[" * 5000,
    ],
)
def test_bad_override_is_refused(
    tmp_path: Path, raw_config: dict[str, Any], override: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path / "c.yaml", raw_config), [override])
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- 1",
        "name: a\nname: b\n",
        "a: " + "[" * 5000,
    ],
)
def test_file_that_is_no_config_is_refused(
    tmp_path: Path, text: str, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "c.yaml")
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ConfigError, match="byte 7 is not valid UTF-8"):
        load_config(tmp_path / "c.yaml")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "c.yaml")):
        load_config(tmp_path / "c.yaml")


OWN_CODE = {
    "image": {"context": None, "framework": {"version": "2.5.1"}},
    "training": {"source_dir": "code"},
}


def test_own_code_beside_a_container_and_no_context_means_no_build(
    make_config: Any, tmp_path: Path
) -> None:
    config = make_config(**OWN_CODE)
    assert config.runs_unmodified_container
    placed = config.with_absolute_paths(tmp_path)
    assert (placed.image.context, placed.training.source_dir) == (None, str(tmp_path / "code"))
    assert config_digest(placed) == config_digest(config)
    built = make_config(
        image={"context": "image", "framework": {"version": "2.5.1"}}, training=OWN_CODE["training"]
    )
    assert (built.runs_unmodified_container, config_digest(built) == config_digest(config)) == (
        False,
        False,
    )


@pytest.mark.parametrize(
    ("image", "training"),
    [
        ({}, {"source_dir": "code"}),
        ({"framework": {"version": "2.5.1"}}, {}),
        ({"uri": "a:1"}, {"source_dir": "code"}),
    ],
)
def test_a_build_without_a_context_is_this_projects(
    image: dict[str, Any], training: dict[str, Any], make_config: Any, tmp_path: Path
) -> None:
    config = make_config(image={"context": None, **image}, training=training)
    assert not config.runs_unmodified_container
    assert config.with_absolute_paths(tmp_path / "configs").image.context == str(
        tmp_path / "infra" / "image"
    )


def test_build_arguments_without_a_build_are_refused(make_config: Any) -> None:
    image = {**OWN_CODE["image"], "build_args": {"REQUIREMENTS": "requirements-on-dlc.lock"}}
    message = (
        "image.build_args only apply to a build, but no image is built: .*remove build_args, or"
        " set image.context"
    )
    with pytest.raises(ConfigError, match=message):
        make_config(image=image, training=OWN_CODE["training"])


def test_a_message_shows_no_value_that_may_be_a_secret(
    raw_config: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    raw_config["training"]["environment"] = {"PIN": 12345678}
    raw_config["image"]["build_args"] = {"INDEX": ["s3cr3t"]}
    raw_config["dataset"]["validation"] = {"image": {"build_args": {"INDEX": ["s3cr3t"]}}}
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="c.yaml")
    assert str(refused.value) == snapshot
    assert "12345678" not in str(refused.value) and "s3cr3t" not in str(refused.value)


def test_json_and_text_of_a_config_have_no_value_that_may_be_a_secret(
    raw_config: dict[str, Any],
) -> None:
    raw_config["training"]["environment"] = {"A": "s3cr3t"}
    raw_config["image"]["build_args"] = {"B": "s3cr3t"}
    raw_config["dataset"]["validation"] = {"image": {"build_args": {"C": "s3cr3t"}}}
    config = parse_config(raw_config, origin="c.yaml")
    assert "s3cr3t" not in config.model_dump_json() + repr(config)
    assert "s3cr3t" not in str(config.model_dump(mode="json"))
    assert config.model_dump(mode="json", context=WITH_SECRETS)["training"]["environment"] == {
        "A": "s3cr3t"
    }
    other = config.model_copy(
        update={"training": config.training.model_copy(update={"environment": {"A": "other"}})}
    )
    assert config_digest(other) != config_digest(config), "another value is another benchmark"


def test_what_whoever_describes_a_job_sees_is_shown_in_a_configs_json(
    raw_config: dict[str, Any],
) -> None:
    raw_config["name"] = "sh0wn"
    shown = {
        "hyperparameters": {"api_key": "sh0wn"},
        "tags": {"owner": "sh0wn"},
        "metric_definitions": {"sh0wn": "x=([0-9]+)"},
        "extra_channels": {"sh0wn": {"type": "S3", "uri": "s3://bucket/a"}},
    }
    raw_config["training"] |= shown
    dumped = parse_config(raw_config, origin="c.yaml").model_dump(mode="json")
    assert dumped["name"] == "sh0wn"
    assert {name: str(dumped["training"][name]).count("sh0wn") for name in shown} == dict.fromkeys(
        shown, 1
    )


def test_settings_of_the_network_libraries_are_shown_so_that_sweeps_can_be_compared(
    raw_config: dict[str, Any],
) -> None:
    prefixes = ("NCCL", "FI", "OMP", "TORCH", "CUDA", "GLOO", "RDMAV")
    settings = {f"{prefix}_X": "efa" for prefix in prefixes}
    raw_config["training"]["environment"] = {**settings, "NCCL": "s3cr3t", "X_NCCL_X": "s3cr3t"}
    shown = parse_config(raw_config, origin="c.yaml").model_dump(mode="json")["training"][
        "environment"
    ]
    assert shown == {**settings, "NCCL": "(hidden)", "X_NCCL_X": "(hidden)"}


@pytest.mark.parametrize(
    "override", ["name=\udcff", "\udcff=1", 'name="\\ud800"', 'training.environment.A="\\udc00"']
)
def test_half_a_character_is_a_message(
    tmp_path: Path, raw_config: dict[str, Any], override: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path / "c.yaml", raw_config), [override])
    str(refused.value).encode(errors="backslashreplace")


@pytest.mark.parametrize(
    "training",
    [
        {"batch": None},
        {"learning_rate": None},
        {"batch": None, "hyperparameters": {}},
    ],
)
def test_a_number_that_the_config_leaves_to_the_program_cannot_be_handed_to_it(
    raw_config, training, snapshot
):
    raw_config["training"] |= training
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="test")
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "section",
    [
        {"training": {"hyperparameters": {"api_key": ["s3cr3t"]}}},
        {"training": {"hyperparameters": {f"api_key_{n}": "s3cr3t" for n in range(99)}}},
        {"training": {"environment": {"A": ["s3cr3t"]}, "sede": 1}},
        {"training": {"batch": {"policy": {"a": "s3cr3t"}}}},
        {"image": {"build_args": {"A": ["s3cr3t"]}}},
    ],
)
def test_a_message_shows_no_value_of_a_mapping(
    make_config: Callable[..., BenchmarkConfig], section: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_config(**section)
    assert "s3cr3t" not in str(refused.value)


def expectation(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"dataset": {"expectations": [{"type": kind, "kwargs": arguments}]}}


NOT_NULL = "expect_column_values_to_not_be_null"
MATCHES = "expect_column_values_to_match_regex"


@pytest.mark.parametrize(
    "section",
    [
        {"platform": {"bucket": "a..b"}},
        {"platform": {"bucket": "192.168.0.1"}},
        {"platform": {"bucket": "x-s3alias"}},
        {"platform": {"bucket": "xn--runs"}},
        {"dataset": {"source": "s3://a..b/c"}},
        {"image": {"uri": "{"}},
        {"image": {"base_image": "a b"}},
        {"training": {"environment": {"SEED": "{seed}"}}},
        expectation(NOT_NULL, column="a", mostly=7),
        expectation(NOT_NULL, column=None),
        expectation(NOT_NULL, column=""),
        expectation(MATCHES, column="a", regex="("),
        expectation("expect_column_values_to_match_regex_list", column="a", regex_list=["("]),
        expectation("expect_table_row_count_to_equal", value="many"),
        expectation("expect_compound_columns_to_be_unique", column_list="a"),
        expectation("expect_column_max_to_be_between", column="a", strict_max="no"),
    ],
)
def test_a_value_that_no_run_can_use_is_refused_with_the_config(
    make_config: Callable[..., BenchmarkConfig],
    section: dict[str, Any],
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_config(**section)
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "section",
    [
        {"platform": {"bucket": "runs-123456789012-eu-west-1-an"}},
        {"dataset": {"source": "s3://an-access-point-s3alias/digits"}},
        {"training": {"environment": {"CONFIG": '{"seed": 1, "x": {y}}'}}},
        expectation(NOT_NULL, column="a", mostly=0.995),
        expectation("expect_column_values_to_be_between", column="a", min_value="2025-01-01"),
        expectation("expect_column_values_to_be_between", column="a", min_value=None, max_value=3),
        expectation("expect_column_values_to_be_in_set", column="a", value_set=[1, "a", None]),
        expectation("expect_column_min_to_be_between", column="a", min_value={"$PARAMETER": "x"}),
        expectation("expect_column_values_to_be_between", column="a",
                    min_value=date(2025, 1, 1)),
    ],
)  # fmt: skip
def test_odd_values_that_a_run_can_use_are_taken(
    make_config: Callable[..., BenchmarkConfig], section: dict[str, Any]
) -> None:
    make_config(**section)
