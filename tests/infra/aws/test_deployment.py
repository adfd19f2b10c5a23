"""The stack in the local platform: its resources, and the permissions of the pipeline's role for
every call of the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import made_plan
from nodesweep.aws.platform import aws_client
from nodesweep.cli.commands.history import show_history
from nodesweep.cli.main import main
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import WITH_SECRETS
from nodesweep.errors import ImageBuildFailed
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages.outcomes import PlannedSweep
from nodesweep.flows.stages.sweep import submit_point
from nodesweep.flows.stop import stop_sweep
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.launcher import submit
from nodesweep.launch.sagemaker.preflight.capacity import describe_capacity
from nodesweep.launch.sagemaker.preflight.identity import needs_of
from nodesweep.launch.sagemaker.preflight.online import check_online, clients_of
from nodesweep.polling import STOP, Clock
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.tasks.dataset.remote.objects import describe_remote
from nodesweep.tasks.dataset.remote.validation import remote_tables
from nodesweep.tasks.image.codebuild import start, wait
from nodesweep.tasks.image.find import find_repository, read_context
from nodesweep.tasks.preflight.facts import read_facts
from nodesweep.tasks.report.pricing import price_instance
from sagemaker_emulator.interfaces import ImageBuildError
from sagemaker_emulator.simulation.images import SimulatedImageStore
from tests.flows.simulated_sweep import measure
from tests.infra.aws.api_calls import ApiCall, needed, recorded
from tests.infra.aws.deployed import NOT_IN_MOTO, deploy, policies_of, template
from tests.infra.aws.iam_policy import Access, grants_used, refused, unused
from tests.infra.aws.spark_validation import PROCESSING, validate_on_spark
from tests.nodesweep.launch.sagemaker.rendered import build_request

ACCOUNT = "000000000001"
CONFIGS = Path(__file__).resolve().parents[3] / "configs"
ENDLESS = {"NODESWEEP_SIM_STARTUP_SECONDS": "1e9"}
# what moto passes over: NOT_IN_MOTO
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS")


def denied(request: Any) -> dict[str, Any]:
    """Return SimulatePrincipalPolicy's response for a role without policies; moto lacks this
    call."""
    return {
        "EvaluationResults": [
            {"EvalActionName": name, "EvalDecision": "implicitDeny", "MissingContextValues": []}
            for name in request["ActionNames"]
        ]
    }


@pytest.fixture(scope="module")
def calls(
    prefect: None, platform: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ApiCall]]:
    """Record every call of the pipeline's life, with the config that the stack's outputs give."""
    folder = tmp_path_factory.mktemp("work")
    with (
        pytest.MonkeyPatch.context() as patch,
        recorded({"iam:SimulatePrincipalPolicy": denied, **PROCESSING}) as made,
    ):
        patch.chdir(folder)
        first = config_of(platform, "nodesweep", folder)
        run_local_benchmark(first)
        run_own_code_on_own_data(platform, first, folder)
        run_failing_build(first, patch)
        stop_hanging_build(first, patch)
        validate_on_spark(platform, first)
        ask_the_account(first, folder)
    yield made


def local_benchmark(
    first: BenchmarkConfig, *overrides: str, **sections: dict[str, Any]
) -> BenchmarkConfig:
    """configs/local.yaml on the deployed stack, with two small points."""
    config = load_config(CONFIGS / "local.yaml", ["sweep.node_counts=[1,2]", *overrides])
    updates = {
        name: getattr(config, name).model_copy(update=values) for name, values in sections.items()
    }
    return config.model_copy(update={"platform": first.platform, **updates})


def run_local_benchmark(first: BenchmarkConfig) -> None:
    """Run, stop with a job that would continue, resume, create the report again, and read the
    history."""
    config = local_benchmark(first)
    result = scaling_benchmark(config)
    assert result.missing_points == 0
    endless = local_benchmark(first, training={"environment": ENDLESS})
    plan = plan_sweep(endless, load_catalogue().get(endless.training.instance_type))
    provenance = result.report.provenance
    inputs = ResolvedInputs(
        result.sweep_id, str(provenance["image_uri"]), str(provenance["dataset_uri"])
    )
    request = build_request(endless, plan.points[0], inputs, attempt=9)
    submit(aws_client("sagemaker", first.platform), request)
    assert stop_sweep(result.sweep_id, first) == [request["TrainingJobName"]]
    planned = PlannedSweep(backend_of(endless.platform), endless, plan, inputs)
    assert submit_point(planned, plan.points[0]) is None, (
        "claimed, and withdrawn: the sweep is stopped"
    )
    assert scaling_benchmark(config, sweep_id=result.sweep_id).sweep_id == result.sweep_id
    report_sweep(result.sweep_id, config)
    assert not show_history(config, config.name, None, 0.05, None)


def run_own_code_on_own_data(
    platform: SimpleNamespace, first: BenchmarkConfig, folder: Path
) -> None:
    """Run with a dataset below DataPrefix, a source_dir, a warm pool, a training plan, and a point
    whose program fails."""
    uri = platform.stack.outputs["DataUri"]
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    # The template's VersioningConfiguration, which moto's CloudFormation leaves out.
    platform.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for path in (CONFIGS / "data" / "digits").glob("*.parquet"):
        platform.s3.upload_file(str(path), bucket, f"{prefix}digits/{path.name}")
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print('own')\n")
    config = local_benchmark(
        first,
        "name=own",
        dataset={"source": f"{uri}digits/"},
        training={
            "source_dir": str(folder / "code"),
            "keep_alive_seconds": 3600,
            "training_plan_arn": made_plan(platform, "ml.local.micro", 1),
        },
        sweep={"node_counts": (1,)},
    )
    assert scaling_benchmark(config).missing_points == 0
    faults = '[{"fault": "algorithm_error", "after_seconds": 20}]'
    failing = local_benchmark(
        first, "name=failing", training={"environment": {"NODESWEEP_FAULTS": faults}}
    )
    assert measure(failing).missing_points == 2


def run_failing_build(first: BenchmarkConfig, patch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ImageBuildError("RUN pip install: no such package")

    patch.setattr(SimulatedImageStore, "build", fail)
    with pytest.raises(ImageBuildFailed, match="no such package"):
        build_image(first, "failing", deadline_seconds=HANG_SECONDS)


def stop_hanging_build(first: BenchmarkConfig, patch: pytest.MonkeyPatch) -> None:
    def hang(
        self: Any,
        context: Any,
        repository: str,
        tag: str,
        args: Any,
        say: Any,
        stop: threading.Event,
        *_: Any,
    ) -> None:
        assert stop.wait(HANG_SECONDS)
        raise ImageBuildError("stopped")

    patch.setattr(SimulatedImageStore, "build", hang)
    with pytest.raises(ImageBuildFailed):
        build_image(first, "hanging", deadline_seconds=-1)


def build_image(config: BenchmarkConfig, token: str, deadline_seconds: float) -> None:
    """Build the image as a run does if ECR does not have it."""
    STOP.clear()  # as every flow begins; one that failed has left it set
    codebuild, s3, ecr, logs = (
        aws_client(name, config.platform) for name in ("codebuild", "s3", "ecr", "logs")
    )
    context = read_context(config.image)
    repository = find_repository(ecr, config.image, create_missing=False, tag=context.tag)
    build_id = start(codebuild, s3, config.image, config.platform, context, repository, token)
    wait(codebuild, logs, build_id, deadline_seconds, Clock(), token)


def ask_the_account(first: BenchmarkConfig, folder: Path) -> None:
    """Run `plan --online` for nodes of AWS in a VPC, with file systems and an existing image."""
    outputs = {
        "subnets": ["subnet-0123456789abcdef0"],
        "security_group_ids": ["sg-0123456789abcdef0"],
    }
    uri = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{first.image.repository}:latest"
    raw = first.model_dump(mode="json", context=WITH_SECRETS)
    raw["training"]["vpc"] = outputs
    raw["training"]["extra_channels"] = {
        "lustre": {
            "type": "FSxLustre",
            "id": "fs-0123456789abcdef0",
            "directory_path": "/fsx/data",
        },
        "efs": {"type": "EFS", "id": "fs-0123456789abcdef1", "directory_path": "/data"},
    }
    raw["image"]["uri"] = uri
    config = BenchmarkConfig.model_validate(raw)
    instance = load_catalogue().get(config.training.instance_type)
    facts = read_facts(config)
    check_online(facts)
    sold = load_catalogue().get("ml.p5.48xlarge")  # by training plans, too
    describe_capacity(replace(facts, instance=sold), clients_of(config.platform))
    price_instance(
        backend_of(config.platform), instance, folder / "prices.json", instance.price_date
    )


@pytest.fixture(scope="module")
def pipeline_policies(platform: SimpleNamespace) -> list[dict[str, Any]]:
    return policies_of(platform.endpoint, platform.stack.resources["PipelineRole"])


@pytest.mark.slow  # a Prefect server and six flows
def test_pipeline_may_do_all_that_it_does(
    calls: list[ApiCall], pipeline_policies: list[dict[str, Any]]
) -> None:
    assert (
        refused(pipeline_policies, [access for call in calls for access in needed(call, ACCOUNT)])
        == []
    )


@pytest.mark.slow
def test_pipeline_does_all_that_it_may(
    calls: list[ApiCall], pipeline_policies: list[dict[str, Any]]
) -> None:
    accesses = [access for call in calls for access in needed(call, ACCOUNT)]
    assert unused(pipeline_policies, accesses) == []


_RUNTIME, _TYPES = "sagemaker:MaxRuntimeInSeconds", "sagemaker:InstanceTypes"


def test_the_stack_may_name_instance_types_and_a_runtime(platform: SimpleNamespace) -> None:
    limits = {"TrainingInstanceTypes": "ml.m5.large,ml.g5.*", "MaxRuntimeSeconds": "3600"}
    names = {
        "BucketName": "limited",
        "RepositoryName": "limited",
        "CodeBuildProjectName": "limited-image",
    }
    stack = deploy(platform.endpoint, "limited", CreateTrainingLogGroup="false", **names, **limits)
    policies = policies_of(platform.endpoint, stack.resources["PipelineRole"])
    sweep = "local-20261121000000-0123abcd"
    job = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/{sweep}-n1-r1-a1-0123"
    tagged = {"aws:RequestTag/nodesweep:sweep-id": sweep}
    for runtime, instance, allowed in (
        ("3600", "ml.m5.large", True),
        ("3600", "ml.g5.xlarge", True),
        ("3601", "ml.m5.large", False),
        ("60", "ml.p5.48xlarge", False),
    ):
        access = Access(
            "sagemaker:CreateTrainingJob", job, tagged | {_RUNTIME: runtime, _TYPES: instance}
        )
        assert bool(grants_used(policies, access)) == allowed, access


BUILD = {
    "codebuild:source.location": "nodesweep-000000000001-us-east-1/nodesweep/contexts/ctx-1.zip",
    "codebuild:environment.environmentVariables.name": (
        "IMAGE_TAG",
        "BUILD_ARG_BASE_IMAGE",
        "NODESWEEP_STARTER",
    ),
}


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ({}, True),
        ({"codebuild:source.buildspec": "true"}, False),
        ({"codebuild:environment.image": "somebody/elses:1"}, False),
        ({"codebuild:serviceRole": "arn:aws:iam::000000000001:role/admin"}, False),
        ({"codebuild:secondarySources": "true"}, False),
        ({"codebuild:logsConfig": "true"}, False),
        ({"codebuild:source.location": "elsewhere/context.zip"}, False),
        ({"codebuild:environment.environmentVariables.name": ("IMAGE_TAG", "BASH_ENV")}, False),
        ({"codebuild:environment.environmentVariables.name": ("LD_PRELOAD",)}, False),
    ],
)
def test_a_build_is_started_with_nothing_but_what_the_pipeline_sends(
    pipeline_policies: list[dict[str, Any]], override: dict[str, Any], allowed: bool
) -> None:
    project = f"arn:aws:codebuild:us-east-1:{ACCOUNT}:project/nodesweep-image"
    access = Access("codebuild:StartBuild", project, BUILD | override)
    assert bool(grants_used(pipeline_policies, access)) == allowed


def test_a_build_of_the_shipped_context_is_one_that_the_role_may_start(
    platform: SimpleNamespace, pipeline_policies: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The context has the buildspec of the project, so no buildspec is sent."""
    config = config_of(platform, "nodesweep", tmp_path)
    with pytest.MonkeyPatch.context() as patch, recorded({}) as made:
        run_failing_build(config, patch)
    [started] = [call for call in made if call.name == "codebuild:StartBuild"]
    assert "buildspecOverride" not in started.parameters
    assert (
        refused(pipeline_policies, [access for call in made for access in needed(call, ACCOUNT)])
        == []
    )


def test_the_stack_may_let_builds_bring_their_own_buildspec(platform: SimpleNamespace) -> None:
    names = {
        "BucketName": "own-spec",
        "RepositoryName": "own-spec",
        "CodeBuildProjectName": "own-spec-image",
    }
    stack = deploy(
        platform.endpoint, "own-spec", CreateTrainingLogGroup="false", OwnBuildspecs="true", **names
    )
    policies = policies_of(platform.endpoint, stack.resources["PipelineRole"])
    project = f"arn:aws:codebuild:us-east-1:{ACCOUNT}:project/own-spec-image"
    sent = BUILD | {
        "codebuild:source.location": "own-spec/nodesweep/contexts/c.zip",
        "codebuild:source.buildspec": "true",
    }
    assert grants_used(policies, Access("codebuild:StartBuild", project, sent))
    assert not grants_used(
        policies, Access("codebuild:StartBuild", project, sent | {"codebuild:serviceRole": "r"})
    )


def test_other_things_are_refused(
    platform: SimpleNamespace, pipeline_policies: list[dict[str, Any]]
) -> None:
    bucket, role = platform.stack.outputs["BucketName"], platform.stack.outputs["ExecutionRoleArn"]
    job = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job"
    sweep, name = "local-20261121000000-0123abcd", "local-20261121000000-0123abcd-n1-r1-a1-0123"
    tag = "nodesweep:sweep-id"
    tagged = {f"aws:RequestTag/{tag}": sweep}
    for access in (
        Access("s3:PutObject", f"arn:aws:s3:::{bucket}/raw/a"),
        Access("s3:GetObject", "arn:aws:s3:::other/nodesweep/sweeps/a"),
        Access("s3:ListBucket", f"arn:aws:s3:::{bucket}", {"s3:prefix": "private/"}),
        Access("s3:ListBucket", f"arn:aws:s3:::{bucket}"),
        Access("s3:DeleteObject", f"arn:aws:s3:::{bucket}/nodesweep/sweeps/{sweep}/config.json"),
        Access(
            "sagemaker:CreateTrainingJob", f"{job}/somebody-elses", {f"aws:RequestTag/{tag}": sweep}
        ),
        Access("sagemaker:CreateTrainingJob", f"{job}/{name}"),
        Access(
            "sagemaker:CreateTrainingJob",
            f"{job}/{name}",
            tagged | {_RUNTIME: "432001", _TYPES: "ml.m5.large"},
        ),
        Access(
            "sagemaker:CreateTrainingJob",
            f"{job}/{name}",
            tagged | {_RUNTIME: "60", _TYPES: "p5.48xlarge"},
        ),
        Access("sagemaker:CreateTrainingJob", f"{job}/{name}", tagged),
        Access("sagemaker:CreateTrainingJob", f"{job}/{name}", tagged | {_RUNTIME: "60"}),
        Access("sagemaker:StopTrainingJob", f"{job}/{name}"),
        Access("iam:PassRole", role),
        Access("iam:PassRole", role, {"iam:PassedToService": "lambda.amazonaws.com"}),
        Access(
            "iam:PassRole",
            f"arn:aws:iam::{ACCOUNT}:role/admin",
            {"iam:PassedToService": "sagemaker.amazonaws.com"},
        ),
        Access("ecr:PutImage", f"arn:aws:ecr:us-east-1:{ACCOUNT}:repository/nodesweep"),
    ):
        assert not grants_used(pipeline_policies, access), access


def test_execution_role_may_do_what_the_preflight_asks_of_it(
    platform: SimpleNamespace, tmp_path: Path
) -> None:
    stack = deploy(platform.endpoint, "with-vpc", CreateVpc="true", **OTHER_NAMES)
    policies = policies_of(platform.endpoint, stack.resources["ExecutionRole"])
    config = config_of(platform, "with-vpc", tmp_path)
    assert config.training.vpc is not None
    assert refused(policies, accesses_of(config)) == []
    assert not grants_used(
        policies, Access("s3:ListBucket", f"arn:aws:s3:::{config.platform.bucket}")
    ), "no prefix"
    assert not grants_used(
        policies, Access("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": "AWS/Billing"})
    )
    for container in (  # own code runs in one as it is
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-gpu-py311",
        "658645717510.dkr.ecr.us-east-1.amazonaws.com/smdistributed-modelparallel:2.4.1-gpu-py311-cu121",
    ):
        image = config.image.model_copy(update={"uri": container})
        assert refused(policies, accesses_of(config.model_copy(update={"image": image}))) == []
    training = f"arn:aws:s3:::{config.platform.bucket}/{config.platform.prefix}"
    for action, key, allowed in (
        ("s3:GetObject", "datasets/d/0/data/a.parquet", True),
        ("s3:PutObject", "sweeps/s/jobs/j/output/output.tar.gz", True),
        ("s3:GetObject", "sweeps/s/jobs/j/checkpoints/last.ckpt", True),
        ("s3:PutObject", "datasets/d/0/data/a.parquet", False),
        ("s3:PutObject", "contexts/ctx-0.zip", False),
        ("s3:PutObject", "sweeps/s/config.json", False),
    ):
        assert bool(grants_used(policies, Access(action, f"{training}/{key}"))) == allowed, key


def accesses_of(config: BenchmarkConfig) -> list[Access]:
    return [
        Access(action, need.resource, dict(need.context))
        for need in needs_of(config)
        for action in need.actions
    ]


OTHER_NAMES = {
    "BucketName": "other-bucket",
    "RepositoryName": "other",
    "CodeBuildProjectName": "other-image",
    "CreateTrainingLogGroup": "false",
}


def test_everything_asked_for_is_made(platform: SimpleNamespace) -> None:
    names = {
        **OTHER_NAMES,
        "BucketName": "everything",
        "RepositoryName": "every",
        "CodeBuildProjectName": "every-image",
    }
    stack = deploy(
        platform.endpoint, "everything", Encryption="SSE-KMS", CreateVpc="true", JobEvents="true",
        BudgetEmail="somebody@example.com", DatasetBucketName="elsewhere", **names,
    )  # fmt: skip
    # CreateFileSystem is left out: moto makes no file system, and fails at the output that asks for
    # its mount name.
    assert {
        resource["Type"] for resource in template()["Resources"].values()
    } - stack.types == NOT_IN_MOTO
    assert {
        "EventQueue",
        "EventRule",
        "Key",
        "NodeGroup",
        "S3Endpoint",
        "StsEndpoint",
        "Subnet",
    } <= stack.resources.keys()
    assert "TrainingLogs" not in stack.resources
    encryption = platform.s3.get_bucket_encryption(Bucket="everything")[
        "ServerSideEncryptionConfiguration"
    ]
    rule = encryption["Rules"][0]["ApplyServerSideEncryptionByDefault"]
    assert rule == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": stack.outputs["KeyArn"]}


def test_options_extend_the_pipelines_role(platform: SimpleNamespace, tmp_path: Path) -> None:
    """The options are a KMS key, which preflight checks, and a dataset in another bucket."""
    names = {
        **OTHER_NAMES,
        "BucketName": "optional",
        "RepositoryName": "opt",
        "CodeBuildProjectName": "opt-image",
    }
    stack = deploy(
        platform.endpoint, "optional", Encryption="SSE-KMS", DatasetBucketName="elsewhere", **names
    )
    platform.s3.create_bucket(Bucket="elsewhere")
    platform.s3.put_object(Bucket="elsewhere", Key="tables/a.parquet", Body=b"rows")
    config = config_of(platform, "optional", tmp_path)
    with recorded({"iam:SimulatePrincipalPolicy": denied}) as made:
        check_online(read_facts(config))
        s3 = aws_client("s3", config.platform)
        dataset = config.dataset.model_copy(update={"source": "s3://elsewhere/tables"})
        [table] = remote_tables(s3, describe_remote(s3, dataset), dataset)
        assert table.open().read() == b"rows"
    assert "kms:DescribeKey" in {call.name for call in made}
    policies = policies_of(platform.endpoint, stack.resources["PipelineRole"])
    assert refused(policies, [access for call in made for access in needed(call, ACCOUNT)]) == []


def config_of(platform: SimpleNamespace, stack: str, folder: Path) -> BenchmarkConfig:
    """Return the config that `config init` creates for a deployed stack."""
    path = folder / f"{stack}.yaml"
    arguments = ["config", "init", "--from-stack", stack, "--region", "us-east-1"]
    local = ["--endpoint-url", platform.endpoint, "--state-directory", str(platform.state_dir)]
    result = CliRunner().invoke(main, [*arguments, *local, "--output", str(path)])
    assert result.exit_code == 0, result.output
    return load_config(path)


def test_default_stack_makes_nothing_that_costs_by_the_hour(platform: SimpleNamespace) -> None:
    assert platform.stack.types == {
        "AWS::S3::Bucket",
        "AWS::ECR::Repository",
        "AWS::Logs::LogGroup",
        "AWS::IAM::Role",
    }
    assert platform.stack.outputs["BucketName"] == f"nodesweep-{ACCOUNT}-us-east-1"
