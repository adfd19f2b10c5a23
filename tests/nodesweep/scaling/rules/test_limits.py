"""Lengths and patterns of the request's fields, and their numbers against botocore's model."""

from __future__ import annotations

import botocore.session
import pytest

from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_STEPS
from nodesweep.scaling.planning.amount import RUN_SECONDS, RUN_STEPS
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
    ("environment", "message"),
    [
        (
            {"1A": ""},
            (
                "training.environment: '1A' is no name for a variable; use letters, digits and _,"
                " no digit first"
            ),
        ),
        ({"A\n": ""}, r"training.environment: 'A\n' is no name for a variable"),
        ({"": ""}, "training.environment: '' is no name for a variable"),
        (
            {"A" * 513: ""},
            f"training.environment: the name '{'A' * 37}…' is 513 characters; SageMaker takes 512",
        ),
        (
            {"A": "v" * 513},
            (
                "training.environment: the value of 'A' is 513 characters; SageMaker takes 512; put"
                " it into a file beside the program"
            ),
        ),
    ],
)
def test_environment(environment, message, check_config):
    (problem,) = check_config(training={"environment": environment}).problems
    assert problem.startswith(message)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"": "(x)"}, "training.metric_definitions: a metric has an empty name; name it"),
        (
            {"m" * 256: "(x)"},
            (
                f"training.metric_definitions: the name '{'m' * 37}…' is 256 characters; SageMaker"
                " takes 255"
            ),
        ),
        (
            {"loss": f"({'x' * 499})"},
            (
                "training.metric_definitions: the expression of 'loss' is 501 characters; SageMaker"
                " takes 500"
            ),
        ),
    ],
)
def test_metric_definitions(metrics, message, check_config):
    assert check_config(training={"metric_definitions": metrics}).problems == (message,)


@pytest.mark.parametrize(("region", "room"), [("us-east-1", 138), ("cn-north-1", 134)])
def test_a_repository_that_makes_the_image_uri_too_long(region, room, check_config):
    # 255 - 72 of the digest - 45 of "123456789012.dkr.ecr.us-east-1.amazonaws.com/"; China: 1 + 3
    # characters more
    platform = {"region": region}
    (problem,) = check_config(image={"repository": "r" * (room + 1)}, platform=platform).problems
    assert (
        problem
        == f"image.repository: {room + 1} characters make an image URI longer than SageMaker's 255"
        f" with registry and digest; use at most {room}"
    )
    assert check_config(image={"repository": "r" * room}, platform=platform).problems == ()
    given = {"repository": "r" * 200, "uri": "example.com/own:1"}
    assert check_config(image=given, platform=platform).problems == ()


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        (
            "../train.py",
            (
                "training.entry_point: '../train.py' leads out of training.source_dir; name a file"
                " in it"
            ),
        ),
        (
            "/opt/train.py",
            (
                "training.entry_point: '/opt/train.py' leads out of training.source_dir; name a"
                " file in it"
            ),
        ),
        (
            "d/" * 255 + "t.py",
            "training.entry_point: the name is 514 characters; SageMaker takes 512",
        ),
    ],
)
def test_an_entry_point_of_ones_own_code(entry_point, message, check_config):
    code = {"entry_point": entry_point, "source_dir": "code"}
    assert check_config(training=code).problems == (message,)
    assert check_config(training={**code, "source_dir": None}).problems == ()


def test_what_is_just_within_the_limits(check_config):
    training = {
        "environment": {"A" * 512: "v" * 512, "_a1": ""},
        "metric_definitions": {"m" * 255: f"({'x' * 498})"},
        "source_dir": "code",
        "entry_point": "d/" * 254 + "t.py",
    }
    assert check_config(training=training).problems == ()


def test_variables_that_the_run_has_not_or_whose_values_are_too_long(make_config):
    """Of a value nothing but its length is looked at; a plan that is made elsewhere knows none."""
    environment = {"A": "${SET}", "B": "${UNSET}", "C": "${LONG}", "D": "plain ${SET}"}
    config = make_config(training={"environment": environment})

    def problems(variables):
        return offline.check(facts_of(config, variables=variables)).problems

    assert problems(None) == ()
    unset, too_long = problems({"SET": 512, "LONG": 513})
    assert unset == (
        "training.environment.B is ${UNSET}, and UNSET is not set where the flow runs; set it in"
        " the environment of the command or of the worker"
    )
    assert too_long.startswith("training.environment.C is ${LONG}, and LONG has 513 characters")
    assert too_long.endswith("let the job fetch it, e.g. from Secrets Manager")


@pytest.mark.parametrize("name", [ASKED_BY, MOST_STEPS])
@pytest.mark.parametrize("design", ["full", "probe"])
def test_what_ends_every_job_early_is_the_sweeps_to_set(name, design, check_config):
    """A probe's check would end early, too."""
    sweep = {"design": design, "node_counts": [1, 2]}
    (problem,) = check_config(sweep=sweep, training={"environment": {name: "30"}}).problems
    assert problem.startswith(f"training.environment: {name} has every job end itself early")


@pytest.mark.parametrize("name", [RUN_SECONDS, RUN_STEPS])
def test_how_much_each_job_does_is_the_sweeps_to_set(name, check_config):
    (problem,) = check_config(training={"environment": {name: "30"}}).problems
    assert problem.startswith(f"training.environment: {name} tells every job how much to do")


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
