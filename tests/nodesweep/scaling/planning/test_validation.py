"""The engine that validates a dataset, the request of its Processing job, and the job's maximum
cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from botocore.session import Session
from botocore.validate import validate_parameters

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import ConfigError
from nodesweep.configs.validation import SPARK_FROM_BYTES
from nodesweep.launch.sagemaker.validation_request import build_validation_request
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import Price, unknown_price
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.planning import validation
from nodesweep.scaling.planning.budget import Allowance, cost_bound
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.planning.validation import (
    attempt_budget_problem,
    choose_engine,
    describe_engine,
    size_hint,
    spark_image,
    validation_bound,
    validation_usd,
)
from nodesweep.scaling.rules.rule import Facts

SWEEP = "bench-20260102000000-01234567"
DOLLAR = Price(instance_type="ml.m5.4xlarge", usd_per_hour=1.0, region="us-east-1")
STARTED = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def config(make_config):
    """Return a config with data in S3, as in config(engine="spark", …); the keywords are those of
    dataset.validation."""

    def make(source="s3://raw/tables", sections=None, **asked):
        dataset = {"source": source, "validation": asked}
        return make_config(dataset=dataset, **(sections or {}))

    return make


@pytest.mark.parametrize(
    ("asked", "size_bytes", "engine"),
    [
        ({"engine": "pandas"}, 10**15, "pandas"),
        ({"engine": "spark"}, 1, "spark"),
        ({}, SPARK_FROM_BYTES - 1, "pandas"),
        ({}, SPARK_FROM_BYTES, "spark"),
        ({"spark_from_bytes": 10}, 2 * 10**9, "spark"),
        ({"source": "data"}, 10**15, "pandas"),
    ],
)
def test_the_engine_goes_by_what_is_asked_and_by_size(config, asked, size_bytes, engine, snapshot):
    choice = choose_engine(config(**asked).dataset, size_bytes)
    assert choice.engine == engine
    assert choice.why == snapshot


def test_without_the_section_it_is_this_machine_and_a_large_dataset_gets_a_hint(
    make_config, snapshot
):
    dataset = make_config(dataset={"source": "s3://raw/tables"}).dataset
    assert choose_engine(dataset, 10**15).engine == "pandas"
    assert size_hint(dataset, SPARK_FROM_BYTES - 1) is None
    assert size_hint(dataset, 10**12) == snapshot
    assert describe_engine(dataset) is None


def test_no_hint_where_the_config_says_what_it_wants(config):
    assert size_hint(config(engine="pandas").dataset, 10**15) is None


def test_files_are_not_read_by_any_engine(make_config, snapshot):
    files = {"source": "s3://raw/pictures", "format": "files", "expectations": []}
    dataset = make_config(dataset={**files, "validation": {}}).dataset
    assert choose_engine(dataset, 10**15).why == snapshot
    with pytest.raises(ConfigError) as refused:
        make_config(dataset={**files, "validation": {"engine": "spark"}})
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"engine": "spark", "instance_count": 4},
        {"engine": "pandas"},
        {"source": "data"},
    ],
)
def test_a_plan_says_the_engine_before_the_size_is_known(config, asked, snapshot):
    assert describe_engine(config(**asked).dataset) == snapshot


def test_spark_on_a_directory_of_this_machine_is_refused(config, snapshot):
    with pytest.raises(ConfigError) as refused:
        config(source="data", engine="spark")
    assert str(refused.value) == snapshot


def test_the_request_is_one_that_the_service_takes(config):
    request = build_validation_request(config(engine="spark"), SWEEP, "image@sha256:1", "d" * 64)
    model = Session().get_service_model("sagemaker").operation_model("CreateProcessingJob")
    validate_parameters(request, model.input_shape)
    name = request["ProcessingJobName"]
    assert names.sweep_of_validation_job(name) == SWEEP
    folder = f"s3://bench-bucket/nodesweep/sweeps/{SWEEP}/jobs/{name}"
    assert request == {
        "ProcessingJobName": name,
        "ProcessingResources": {
            "ClusterConfig": {
                "InstanceType": "ml.m5.4xlarge",
                "InstanceCount": 2,
                "VolumeSizeInGB": 100,
            }
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "AppSpecification": {
            "ImageUri": "image@sha256:1",
            "ContainerEntrypoint": ["smspark-submit", "/opt/nodesweep/validate_dataset.py"],
        },
        "RoleArn": "arn:aws:iam::123456789012:role/training",
        "ProcessingInputs": [
            {
                "InputName": "request",
                "S3Input": {
                    "S3Uri": f"{folder}/request",
                    "LocalPath": "/opt/ml/processing/input/request",
                    "S3DataType": "S3Prefix",
                    "S3InputMode": "File",
                    "S3DataDistributionType": "FullyReplicated",
                },
            }
        ],
        "ProcessingOutputConfig": {
            "Outputs": [
                {
                    "OutputName": "verdict",
                    "S3Output": {
                        "S3Uri": f"{folder}/verdict",
                        "LocalPath": "/opt/ml/processing/output/verdict",
                        "S3UploadMode": "EndOfJob",
                    },
                }
            ]
        },
        "Tags": [
            {"Key": "nodesweep:sweep-id", "Value": SWEEP},
            {"Key": "nodesweep:request-digest", "Value": request["Tags"][1]["Value"]},
            {"Key": "nodesweep:attempt", "Value": "1"},
        ],
    }


def test_the_job_is_in_the_network_and_under_the_keys_of_the_training_jobs(config):
    training = {
        "vpc": {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
        "encrypt_inter_container_traffic": True,
        "volume_kms_key_id": "volume-key",
        "output_kms_key_id": "output-key",
        "tags": {"team": "a"},
    }
    asked = config(engine="spark", sections={"training": training})
    request = build_validation_request(asked, SWEEP, "image", "d" * 64)
    assert request["NetworkConfig"] == {
        "EnableInterContainerTrafficEncryption": True,
        "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    }
    assert request["ProcessingResources"]["ClusterConfig"]["VolumeKmsKeyId"] == "volume-key"
    assert request["ProcessingOutputConfig"]["KmsKeyId"] == "output-key"
    assert {"Key": "team", "Value": "a"} in request["Tags"]


def test_the_name_is_made_of_what_is_asked(config):
    def name(asked, image="image", document="d" * 64, attempt=1):
        request = build_validation_request(asked, SWEEP, image, document, attempt)
        return request["ProcessingJobName"]

    usual = config(engine="spark")
    assert name(usual) == name(config(engine="auto")), "the same job, however it was decided on"
    others = [
        name(usual, image="other"),
        name(usual, document="e" * 64),
        name(usual, attempt=2),
        name(config(engine="spark", instance_count=3)),
    ]
    assert len({name(usual), *others}) == 5


def test_the_image_is_built_by_the_training_images_builder(config):
    image = {"repository": "own/images", "builder": "docker", "build_args": {"A": "training's"}}
    asked = config(image={"build_args": {"REQUIREMENTS": "x"}}, sections={"image": image})
    made = spark_image(asked.image, asked.validation)
    assert (made.repository, made.builder) == ("own/images", "docker")
    assert made.build_args == {"REQUIREMENTS": "x"}
    assert (made.build_context / "Dockerfile").read_text().count("sagemaker-spark-processing") == 1


def test_the_bound_counts_every_attempt_at_its_limit(config, snapshot):
    asked = config(engine="spark", sections={"sweep": {"node_counts": [1], "max_attempts": 3}})
    usd, how = validation_bound(asked, DOLLAR)
    assert usd == pytest.approx(3 * 2 * 3720 / 3600)
    assert how == snapshot
    once = config(engine="spark", sections={"sweep": {"node_counts": [1], "max_attempts": 1}})
    assert validation_bound(once, DOLLAR)[1] == snapshot
    usd, how = validation_bound(asked, unknown_price("ml.m5.4xlarge", "nobody said"))
    assert usd is None
    assert how == snapshot


def test_the_plans_bound_has_the_validation_in_it_once_its_price_is_known(
    config, make_config, snapshot
):
    asked, instance = config(engine="auto"), load_catalogue().get("ml.m5.xlarge")
    jobs, reason = cost_bound(asked, instance)
    offline = plan_sweep(asked, instance)
    assert offline.cost_bound_usd == jobs
    assert offline.cost_bound_reason == snapshot
    known = plan_sweep(asked, instance, DOLLAR)
    assert known.cost_bound_usd == pytest.approx(jobs + 2 * 2 * 3720 / 3600)
    assert known.cost_bound_reason.startswith(f"{reason}; ")
    assert known.cost_bound_reason == snapshot
    by_size = ", if its size requires that"
    assert known.cost_bound_reason.endswith(by_size)
    always = plan_sweep(config(engine="spark"), instance, DOLLAR)
    assert always.cost_bound_reason == known.cost_bound_reason.removesuffix(by_size)
    unknown = plan_sweep(asked, instance, unknown_price("ml.m5.4xlarge", "nobody said"))
    assert unknown.cost_bound_usd is None
    emulated = plan_sweep(asked, load_catalogue().get("ml.local.small"), DOLLAR)
    assert emulated.cost_bound_usd is None
    for without in (config(engine="pandas"), make_config(), make_config(dataset=None)):
        plan = plan_sweep(without, instance, DOLLAR)
        assert (plan.cost_bound_usd, plan.cost_bound_reason) == cost_bound(without, instance)


def test_a_further_attempt_keeps_to_the_budget(config, snapshot):
    asked = config(engine="spark")
    bound = validation.attempt_bound_usd(asked.validation, DOLLAR)
    assert bound == pytest.approx(2 * 3720 / 3600)
    assert attempt_budget_problem(3.0, asked.validation, 3.0 - bound, DOLLAR) is None
    problem = attempt_budget_problem(3.0, asked.validation, 1.0, DOLLAR)
    assert problem == snapshot
    unpriced = unknown_price("ml.m5.4xlarge", "nobody said")
    assert attempt_budget_problem(3.0, asked.validation, 1.0, unpriced) is None
    assert attempt_budget_problem(None, asked.validation, 1e9, DOLLAR) is None


def test_what_the_validation_cost_is_no_longer_there_for_jobs(config):
    asked = config(
        engine="spark",
        sections={
            "sweep": {"node_counts": [1], "budget_usd": 3.0},
            "training": {"max_runtime_seconds": 3480},
        },
    )
    job = names.job_name(SWEEP, 1, 1, 1, "abcd")
    assert Allowance(asked, {"": 1.0}, spent_usd=2.0).budget_problem(job) is None
    assert Allowance(asked, {"": 1.0}, spent_usd=2.1).budget_problem(job) is not None


@pytest.mark.parametrize(
    ("state", "members", "seconds"),
    [
        ("running", {"billing_began_at": STARTED}, None),
        ("failed", {}, 0.0),
        ("completed", {"billing_began_at": STARTED}, None),
        (
            "stopped",
            {
                "billing_began_at": STARTED,
                "billing_ended_at": STARTED + timedelta(seconds=90),
            },
            90.0,
        ),
    ],
)
def test_billed_is_from_the_start_to_the_end(state, members, seconds):
    assert JobStatus("v", state, **members).billed_seconds == seconds


@pytest.mark.parametrize(
    ("provenance", "usd"),
    [
        ({}, None),
        ({"dataset_validation": None}, None),
        ({"dataset_validation": {"engine": "pandas"}}, None),
        ({"dataset_validation": {"usd": None}}, None),
        ({"dataset_validation": {"usd": 1.5}}, 1.5),
    ],
)
def test_a_recorded_cost(provenance, usd):
    assert validation_usd(provenance) == usd


def test_rules_see_the_instance_of_the_job_where_there_may_be_one(config, make_config):
    instance = load_catalogue().get("ml.m5.xlarge")

    def seen(asked):
        return Facts(asked, instance, plan_sweep(asked, instance)).validation_instance

    assert seen(config(engine="auto")).instance_type == "ml.m5.4xlarge"
    for without in (config(engine="pandas"), make_config(), make_config(dataset=None)):
        assert seen(without) is None
