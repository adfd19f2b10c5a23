"""Lengths and patterns of the request's fields, compared with botocore's model."""

from __future__ import annotations

import botocore.session
import pytest

from nodesweep.scaling.outcome.observed import ALL_REDUCES, SWITCH, TIME_ALL_REDUCES
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_STEPS
from nodesweep.scaling.outcome.timed_passes import TIME_PASSES
from nodesweep.scaling.planning.workload import RUN_SECONDS, RUN_STEPS
from nodesweep.scaling.rules import limits, offline, plan
from tests.nodesweep.scaling.rules.facts import facts_of


@pytest.fixture(scope="module")
def service():
    return botocore.session.get_session().get_service_model("sagemaker")


def test_the_numbers_are_those_of_the_service(service):
    environment = service.shape_for("TrainingEnvironmentMap")
    hyperparameters = service.shape_for("HyperParameters")
    metric = service.shape_for("MetricDefinition").members
    assert (
        environment.key.metadata["max"]
        == environment.value.metadata["max"]
        == limits.MAX_ENVIRONMENT_CHARS
    )
    assert environment.key.metadata["pattern"] == limits._ENVIRONMENT_KEY.pattern
    assert metric["Name"].metadata["max"] == limits.MAX_METRIC_NAME_CHARS
    assert metric["Regex"].metadata["max"] == limits.MAX_METRIC_REGEX_CHARS
    image = service.shape_for("AlgorithmSpecification").members["TrainingImage"]
    assert image.metadata["max"] == limits.MAX_IMAGE_URI_CHARS
    assert hyperparameters.metadata["max"] == plan.MAX_HYPERPARAMETERS
    assert hyperparameters.key.metadata["max"] == plan.MAX_HYPERPARAMETER_KEY_CHARS
    assert hyperparameters.value.metadata["max"] == plan.MAX_HYPERPARAMETER_CHARS


@pytest.mark.parametrize(
    "environment",
    [
        {"1A": ""},
        {"A\n": ""},
        {"": ""},
        {"A" * 513: ""},
        {"A": "v" * 513},
    ],
)
def test_environment(environment, check_config, snapshot):
    (problem,) = check_config(training={"environment": environment}).problems
    assert problem == snapshot


@pytest.mark.parametrize(
    "metrics",
    [
        {"": "(x)"},
        {"m" * 256: "(x)"},
        {"loss": f"({'x' * 499})"},
    ],
)
def test_metric_definitions(metrics, check_config, snapshot):
    assert check_config(training={"metric_definitions": metrics}).problems == snapshot


@pytest.mark.parametrize(("region", "room"), [("us-east-1", 138), ("cn-north-1", 134)])
def test_a_repository_that_makes_the_image_uri_too_long(region, room, check_config, snapshot):
    # 255 - 72 of the digest - 45 of "123456789012.dkr.ecr.us-east-1.amazonaws.com/"; China: 1 + 3
    # characters more
    platform = {"region": region}
    (problem,) = check_config(image={"repository": "r" * (room + 1)}, platform=platform).problems
    assert problem == snapshot
    assert check_config(image={"repository": "r" * room}, platform=platform).problems == ()
    given = {"repository": "r" * 200, "uri": "example.com/own:1"}
    assert check_config(image=given, platform=platform).problems == ()


@pytest.mark.parametrize(
    "entry_point",
    [
        "../train.py",
        "/opt/train.py",
        "d/" * 255 + "t.py",
    ],
)
def test_an_entry_point_of_ones_own_code(entry_point, check_config, snapshot):
    code = {"entry_point": entry_point, "source_dir": "code"}
    assert check_config(training=code).problems == snapshot
    assert check_config(training={**code, "source_dir": None}).problems == ()


def test_what_is_just_within_the_limits(check_config):
    training = {
        "environment": {"A" * 512: "v" * 512, "_a1": ""},
        "metric_definitions": {"m" * 255: f"({'x' * 498})"},
        "source_dir": "code",
        "entry_point": "d/" * 254 + "t.py",
    }
    assert check_config(training=training).problems == ()


def test_variables_that_the_run_has_not_or_whose_values_are_too_long(make_config, snapshot):
    """Of a value nothing but its length is looked at; a plan that is made elsewhere knows none."""
    environment = {"A": "${SET}", "B": "${UNSET}", "C": "${LONG}", "D": "plain ${SET}"}
    config = make_config(training={"environment": environment})

    def problems(variables):
        return offline.check(facts_of(config, variables=variables)).problems

    assert problems(None) == ()
    unset, too_long = problems({"SET": 512, "LONG": 513})
    assert unset == snapshot
    assert too_long == snapshot


@pytest.mark.parametrize("name", [ASKED_BY, MOST_STEPS])
@pytest.mark.parametrize("design", ["full", "probe"])
def test_what_ends_every_job_early_is_the_sweeps_to_set(name, design, check_config, snapshot):
    """A probe's check would end early, too."""
    sweep = {"design": design, "node_counts": [1, 2]}
    (problem,) = check_config(sweep=sweep, training={"environment": {name: "30"}}).problems
    assert problem == snapshot


@pytest.mark.parametrize("name", [RUN_SECONDS, RUN_STEPS])
def test_how_much_each_job_does_is_the_sweeps_to_set(name, check_config, snapshot):
    (problem,) = check_config(training={"environment": {name: "30"}}).problems
    assert problem == snapshot


def test_whether_a_script_is_measured_is_the_configs_to_set(check_config, snapshot):
    """The report reads `helper` from the request; a variable of one's own could contradict it."""
    (problem,) = check_config(training={"environment": {SWITCH: "off"}}).problems
    assert problem == snapshot
    assert not check_config(training={"measure": "off"}).problems


@pytest.mark.parametrize("name", [TIME_ALL_REDUCES, ALL_REDUCES, TIME_PASSES])
def test_what_predictions_need_is_measured_not_set(name, check_config, snapshot):
    (problem,) = check_config(training={"environment": {name: "1"}}).problems
    assert problem == snapshot


def test_a_build_argument_that_looks_like_a_secret_is_named(make_config):
    """By its name or a password in its URL; its value is not repeated."""
    validation = {"engine": "spark", "image": {"build_args": {"API_KEY": "s3cr3t"}}}
    config = make_config(
        image={
            "build_args": {
                "PIP_INDEX_URL": "https://me:" + "s3cr3t" + "@host/simple",
                "REQUIREMENTS": "requirements-on-dlc.lock",
                "PIP_EXTRA_INDEX_URL": "https://host/simple",
            }
        },
        dataset={"source": "s3://digits/all", "validation": validation},
    )
    hints = limits.build_arguments_are_no_secrets(facts_of(config)).hints
    assert [hint.split()[0] for hint in hints] == [
        "dataset.validation.image.build_args.API_KEY", "image.build_args.PIP_INDEX_URL",
    ]  # fmt: skip
    assert "s3cr3t" not in str(hints)
