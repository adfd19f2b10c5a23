"""infra/aws/nodesweep.yaml as data: its required and its forbidden contents, and policies that name
existing resources."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from nodesweep.configs.models import ImageConfig, PlatformConfig
from nodesweep.configs.written.from_stack import REQUIRED_OUTPUTS
from nodesweep.scaling import names
from tests.infra.aws.deployed import TEMPLATE, taken, template
from tests.infra.aws.iam_policy import as_list

TEXT = TEMPLATE.read_text()
METRICS = {"cloudwatch:GetMetricData", "cloudwatch:PutMetricData"}
"""The reference lists a resource, "dataset", which the metrics of a training job do not belong
to.
"""
ROLES = ("BuildRole", "ExecutionRole", "PipelineRole")


@cache
def everything() -> dict[str, Any]:
    """Return the template with all of its conditions on."""
    return dict(taken(json.loads(json.dumps(template(), default=str)), 1))


def statements(role: str) -> list[dict[str, Any]]:
    return list(
        everything()["Resources"][role]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    )


@cache
def reference() -> dict[str, Any]:
    """AWS's service authorization reference, as shipped with cfn-lint, by service and lower-case
    action."""
    path = files("cfnlint.data.AdditionalSpecs") / "Policies.json"
    return dict(json.loads(path.read_text()))


def test_cfn_lint_finds_nothing() -> None:
    import cfnlint.api  # takes seconds

    assert [str(match) for match in cfnlint.api.lint(TEXT, regions=["us-east-1"])] == []


def test_template_can_be_sent_without_a_bucket() -> None:
    assert len(TEXT.encode()) <= 51_200  # CloudFormation's limit for TemplateBody


def test_resources_are_these() -> None:
    kinds = Counter(
        resource["Type"].removeprefix("AWS::") for resource in everything()["Resources"].values()
    )
    assert kinds == {
        "S3::Bucket": 1, "S3::BucketPolicy": 1, "KMS::Key": 1, "ECR::Repository": 1,
        "CodeBuild::Project": 1, "IAM::Role": 3, "Logs::LogGroup": 2, "SQS::Queue": 1,
        "SQS::QueuePolicy": 1, "Events::Rule": 1, "Budgets::Budget": 1, "EC2::VPC": 1,
        "EC2::Subnet": 1, "EC2::RouteTable": 1, "EC2::SubnetRouteTableAssociation": 1,
        "EC2::SecurityGroup": 2, "EC2::SecurityGroupIngress": 1, "EC2::SecurityGroupEgress": 1,
        "EC2::VPCEndpoint": 6, "FSx::FileSystem": 1, "FSx::DataRepositoryAssociation": 1,
    }  # fmt: skip


def test_every_parameter_has_a_default_a_description_and_a_place_in_the_console() -> None:
    parameters = everything()["Parameters"]
    groups = everything()["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert all("Default" in one and one["Description"].endswith(".") for one in parameters.values())
    assert sorted(name for group in groups for name in group["Parameters"]) == sorted(parameters)


def test_names_are_those_of_the_config() -> None:
    defaults = {name: one["Default"] for name, one in everything()["Parameters"].items()}
    image = ImageConfig()
    assert (defaults["RepositoryName"], defaults["CodeBuildProjectName"]) == (
        image.repository,
        image.codebuild_project,
    )
    assert defaults["Prefix"] == PlatformConfig.model_fields["prefix"].default


def test_prefixes_are_those_of_the_names() -> None:
    """Each of the bucket's prefixes in a policy or rule is one that nodesweep/scaling/names.py
    writes below.
    """
    keys = (
        names.dataset_prefix("P", "d", "0" * 64),
        names.context_key("P", "ctx-0"),
        names.source_key("P", "0" * 64),
        names.sweeps_prefix("P"),
        names.history_prefix("P"),
    )
    written = {key.split("/")[1] for key in keys}
    assert set(re.findall(r"\$\{Prefix\}/([a-z]+)/", TEXT)) == written
    assert names.claim_key("P", "s", "job", "who") == "P/sweeps/s/claims/who/job.json"
    assert "${Prefix}/sweeps/*/claims/*" in TEXT
    assert names.job_output_key("P", "s", "j").startswith("P/sweeps/s/jobs/")


def test_pattern_of_job_names_holds_for_the_names() -> None:
    sweep = "a-20261121000000-0123abcd"
    job = names.job_name(sweep, 512, 50, 10, "f" * 64)
    assert names.is_sweep_id(sweep)
    [pattern] = set(re.findall(r"training-job/\$\{BenchmarkNames\}(\S+)\"", TEXT))
    assert re.fullmatch(pattern.replace("*", ".*").replace("?", "."), job.removeprefix("a"))


def test_the_projects_buildspec_is_the_one_that_the_image_has() -> None:
    """The texts are equal, since the pipeline sends no buildspec in that case, and the stack allows
    no other."""
    given = everything()["Resources"]["BuildProject"]["Properties"]["Source"]["BuildSpec"]
    assert given == (TEMPLATE.parents[1] / "image" / "buildspec.yml").read_text()


def test_one_build_project_is_privileged_with_its_reason_beside_it() -> None:
    privileged = [line for line in TEXT.splitlines() if "PrivilegedMode" in line]
    assert len(privileged) == 1 and "# `docker build`" in privileged[0]


def test_actions_exist_and_are_scoped() -> None:
    """Without parameters: the template is read by cfn-lint, whose import takes seconds, which
    collecting the tests would cost every worker.
    """
    wrong, found = [], 0
    for role in ROLES:
        for statement in statements(role):
            for action in as_list(statement["Action"]):
                service, _, name = action.partition(":")
                known = reference()[service]["Actions"][name.lower()]
                takes_resource = bool(known.get("Resources")) and action not in METRICS
                is_star = "*" in as_list(statement["Resource"])
                if is_star and takes_resource and "Condition" not in statement:
                    wrong.append((role, action, "an unscoped star"))
                if not is_star and not takes_resource:
                    wrong.append((role, action, "takes no resource: a scope would deny it"))
                found += 1
    assert wrong == [] and found > 50


def test_every_star_has_its_reason_beside_it() -> None:
    lines = TEXT.splitlines()
    for place, line in enumerate(lines):
        is_star = re.search(r'(Resource|Principal): "\*"', line) or re.search(
            r"arn:\$\{AWS::Partition\}:\w+:\*:", line
        )
        if is_star:
            assert "#" in line or "#" in lines[place - 1], f"line {place + 1}: {line.strip()}"


def test_what_a_scanner_asks_for_is_there_or_has_its_reason_beside_it() -> None:
    """checkov finds no problem in either template, since it reads these comments."""

    def skipped(text: str) -> list[tuple[str, str]]:
        return [
            (resource.splitlines()[0].strip(" :"), check)
            for resource in re.split(r"(?m)^(?=  \w+:$)", text)
            for check in re.findall(r"# checkov:skip=(\w+):\w.{30,}", resource)
        ]

    assert skipped(TEXT) == [
        ("Bucket", "CKV_AWS_18"),
        ("Bucket", "CKV_AWS_19"),
        ("Repository", "CKV_AWS_136"),
        ("BuildLogs", "CKV_AWS_158"),
        ("TrainingLogs", "CKV_AWS_158"),
    ]
    assert skipped((TEMPLATE.parents[1] / "worker" / "ecs.yaml").read_text()) == [
        ("Cluster", "CKV_AWS_65"),
        ("LogGroup", "CKV_AWS_158"),
    ]


def test_nothing_else_is_for_everybody() -> None:
    """A principal of "*" is only in denials, and in the policies of the VPC's endpoints, which
    grant no permission."""
    open_to_all = [
        (name, statement["Sid"], statement["Effect"])
        for name, resource in everything()["Resources"].items()
        for statement in resource["Properties"].get("PolicyDocument", {}).get("Statement", ())
        if statement["Principal"] == "*"
    ]
    assert open_to_all == [
        ("BucketPolicy", "TlsOnly", "Deny"),
        ("EventQueuePolicy", "TlsOnly", "Deny"),
        ("S3Endpoint", "ThisAccount", "Allow"),
        ("S3Endpoint", "IntoThisAccount", "Allow"),
        ("S3Endpoint", "ImageLayers", "Allow"),
        ("EcrApiEndpoint", "ThisAccount", "Allow"),
        ("EcrLayersEndpoint", "ThisAccount", "Allow"),
        ("LogsEndpoint", "ThisAccount", "Allow"),
        ("MetricsEndpoint", "ThisAccount", "Allow"),
        ("StsEndpoint", "ThisAccount", "Allow"),
    ]


def endpoint_statements() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, resource in everything()["Resources"].items():
        if resource["Type"] == "AWS::EC2::VPCEndpoint":
            for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
                yield name, statement


def test_endpoints_take_no_other_accounts_keys() -> None:
    """A program in a node could use its own keys to send data to another account."""
    mine = {"Ref": "AWS::AccountId"}
    open_ones = [
        (name, statement["Sid"])
        for name, statement in endpoint_statements()
        if statement.get("Condition", {}).get("StringEquals", {}).get("aws:PrincipalAccount")
        != mine
    ]
    assert open_ones == [("S3Endpoint", "ImageLayers")], "ECR signs the layers' addresses itself"


def test_endpoints_write_into_this_account_alone() -> None:
    mine = {"Ref": "AWS::AccountId"}
    containers = [mine, {"Ref": "BaseImageAccount"}, "658645717510"]
    reached = {
        (name, statement["Sid"]): statement["Condition"]["StringEquals"].get("aws:ResourceAccount")
        for name, statement in endpoint_statements()
        if statement["Sid"] != "ImageLayers"
    }
    assert reached == {
        ("S3Endpoint", "ThisAccount"): None,  # datasets of other accounts are read
        ("S3Endpoint", "IntoThisAccount"): mine,
        ("EcrApiEndpoint", "ThisAccount"): containers,
        ("EcrLayersEndpoint", "ThisAccount"): containers,
        ("LogsEndpoint", "ThisAccount"): mine,
        ("MetricsEndpoint", "ThisAccount"): mine,
        ("StsEndpoint", "ThisAccount"): mine,
    }
    [reading] = [one for name, one in endpoint_statements() if one["Sid"] == "ThisAccount"][:1]
    assert all(re.match("s3:(Get|List)", action) for action in reading["Action"])


def test_nodes_talk_to_each_other_in_both_directions() -> None:
    resources = everything()["Resources"]
    group = {"Fn::GetAtt": ["NodeGroup", "GroupId"]}
    into, out = resources["NodesFromNodes"]["Properties"], resources["NodesToNodes"]["Properties"]
    assert (into["GroupId"], into["SourceSecurityGroupId"], into["IpProtocol"]) == (
        group,
        group,
        "-1",
    )
    assert (out["GroupId"], out["DestinationSecurityGroupId"], out["IpProtocol"]) == (
        group,
        group,
        "-1",
    )


def test_what_costs_by_the_hour_is_off_by_default() -> None:
    defaults = {name: one["Default"] for name, one in template()["Parameters"].items()}
    assert (defaults["CreateVpc"], defaults["CreateFileSystem"], defaults["Encryption"]) == (
        "false",
        "false",
        "SSE-S3",
    )
    dear = {
        "AWS::EC2::VPCEndpoint": {"HasVpc", "HasEndpoints"},
        "AWS::FSx::FileSystem": {"HasFileSystem"},
    }
    for resource in template()["Resources"].values():
        if resource["Type"] in dear:
            assert resource["Condition"] in dear[resource["Type"]]


def test_what_was_measured_outlives_the_stack() -> None:
    """The log group also remains, because jobs of others in the account write to it."""
    resources = template()["Resources"]
    kept = {name for name, one in resources.items() if one.get("DeletionPolicy") == "Retain"}
    assert kept == {"Bucket", "Key", "TrainingLogs"}
    assert all(resources[name]["UpdateReplacePolicy"] == "Retain" for name in kept)


def test_outputs_are_those_that_config_init_reads() -> None:
    for_people = {"DataUri", "PipelineRoleArn", "EventQueueUrl"}
    optional = {"KeyArn", "SubnetId", "SecurityGroupId", "FileSystemId", "FileSystemPath"}
    assert set(template()["Outputs"]) == {*REQUIRED_OUTPUTS, *optional, *for_people}
    conditional = {name for name, output in template()["Outputs"].items() if "Condition" in output}
    assert conditional == {*optional, "EventQueueUrl"}
