"""Online rules for platform.role_arn: it exists, trusts SageMaker and allows a job's actions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

from nodesweep.configs.job import S3ChannelConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import suppress_codes
from nodesweep.launch.sagemaker.preflight.rule import (
    NO_PERMISSION,
    NO_SUCH_SERVICE,
    RuleContext,
    reported,
)
from nodesweep.launch.sagemaker.preflight.storage import EcrImage, parse_ecr_image, push_problem
from nodesweep.launch.sagemaker.validation_request import LOG_GROUP as VALIDATION_LOGS
from nodesweep.scaling import names
from nodesweep.scaling.rules.rule import Facts, Findings, combine

_PRINCIPAL = "sagemaker.amazonaws.com"
_ROLE = "platform.role_arn"
_LOG_ACTIONS = (
    "logs:CreateLogGroup",
    "logs:CreateLogStream",
    "logs:PutLogEvents",
    "logs:DescribeLogStreams",
)
_VPC_ACTIONS = (
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface", "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)  # fmt: skip


KEYS = {
    # kms:Decrypt is for multipart uploads.
    "training.output_kms_key_id": ("kms:GenerateDataKey", "kms:Decrypt"),
    "training.volume_kms_key_id": ("kms:CreateGrant",),
}
_NO_POLICY = (
    "NoSuchBucketPolicy", "NoSuchBucket", "RepositoryPolicyNotFoundException",
    "RepositoryNotFoundException",
)  # fmt: skip
_NO_SUCH_KEY = frozenset({"InvalidArnException", "NotFoundException"})


@dataclass(frozen=True)
class Need:
    """The actions that a job performs on one resource under its role.

    `owner` is a bucket or repository, whose own policy counts too; `context` holds the (condition
    key, value) pairs of the real call.
    """

    actions: tuple[str, ...]
    resource: str
    owner: str | None = None
    context: tuple[tuple[str, str], ...] = ()


Simulated = tuple[Need, list[Mapping[str, Any]], bool]
"""(a need, SimulatePrincipalPolicy's results, True if the resource's own policy may allow it)."""
KeyResponse = tuple[Mapping[str, Any], list[Mapping[str, Any]]]
"""A key's (DescribeKey metadata, SimulatePrincipalPolicy results)."""


def needs_of(config: BenchmarkConfig, in_a_layer: bool = False) -> tuple[Need, ...]:
    """Return the permissions that the role needs.

    Source: SageMaker developer guide, "CreateTrainingJob API: execution role permissions". If
    `in_a_layer` is True, jobs run in a layer of packages on the given image.
    """
    platform, partition = config.platform, _partition(config.platform.role_arn)
    output_prefix = names.sweep_output_prefix(platform.prefix, "x")
    output = f"arn:{partition}:s3:::{platform.bucket}/{output_prefix}/x"
    needs = [
        Need(("s3:GetObject", "s3:PutObject"), output, platform.bucket),
        Need(("s3:ListBucket",), f"arn:{partition}:s3:::{platform.bucket}", platform.bucket,
             (("s3:prefix", f"{names.sweep_output_prefix(platform.prefix, 'x')}/x"),)),
        Need(_LOG_ACTIONS, f"arn:{partition}:logs:{platform.region}:{config.platform.account_id}:"
                           "log-group:/aws/sagemaker/TrainingJobs:log-stream:x"),
        Need(("cloudwatch:PutMetricData",), "*",
             context=(("cloudwatch:namespace", "/aws/sagemaker/TrainingJobs"),)),
        Need(("ecr:GetAuthorizationToken",), "*"),
    ]  # fmt: skip
    if config.dataset is not None and config.dataset.may_use_spark:
        needs.append(
            Need(
                _LOG_ACTIONS,
                f"arn:{partition}:logs:{platform.region}:"
                f"{config.platform.account_id}:log-group:{VALIDATION_LOGS}:log-stream:x",
            )
        )
    locations = []
    if config.dataset is not None:
        prefix = names.dataset_data_prefix(platform.prefix, config.dataset.name, "x")
        uploaded = f"s3://{platform.bucket}/{prefix}"
        locations.append(config.dataset.source if config.dataset.is_remote else uploaded)
    if config.training.source_dir is not None:
        locations.append(
            f"s3://{platform.bucket}/{names.source_key(platform.prefix, 'x').rpartition('/')[0]}"
        )
    locations += [
        one.uri
        for one in config.training.extra_channels.values()
        if isinstance(one, S3ChannelConfig)
    ]
    for location in locations:
        bucket, _, key = location.removeprefix("s3://").partition("/")
        needs.append(
            Need(("s3:GetObject",), f"arn:{partition}:s3:::{bucket}/{key.rstrip('/')}/x", bucket)
        )
    image: EcrImage | None = EcrImage(
        platform.account_id, platform.region, config.image.repository, {}
    )
    if config.image.uri is not None and not in_a_layer:  # otherwise the build's repository
        image = parse_ecr_image(config.image.uri)
    if image is not None:
        resource = (
            f"arn:{partition}:ecr:{image.region}:{image.account}:repository/{image.repository}"
        )
        # Across accounts both sides must allow, so the repository's policy cannot replace the
        # role's.
        owner = image.repository if image.account == config.platform.account_id else None
        needs.append(Need(("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"), resource, owner))
    if config.training.vpc is not None:
        needs.append(Need(_VPC_ACTIONS, "*"))
    return tuple(needs)


def judge_trust(role_arn: str, role: Mapping[str, Any]) -> Findings:
    """Check that a statement in GetRole's Role lets SageMaker assume it."""
    if role["Arn"] != role_arn:
        return Findings(
            (
                (
                    f"{_ROLE}: {role_arn} does not exist, but {role['Arn']} does;"
                    " correct the path or the account"
                ),
            )
        )
    document = role["AssumeRolePolicyDocument"]
    policy = json.loads(unquote(document)) if isinstance(document, str) else document
    if any(_trusts_sagemaker(statement) for statement in _as_list(policy.get("Statement", []))):
        return Findings()
    problem = (
        f"{_ROLE}: {role_arn} does not trust SageMaker; in its trust policy, allow"
        f" sts:AssumeRole for the service {_PRINCIPAL}"
    )
    return Findings((problem,))


def judge_simulation(
    role_arn: str, need: Need, results: list[Mapping[str, Any]], owner_may_allow: bool
) -> Findings:
    """Check SimulatePrincipalPolicy's EvaluationResults for one resource.

    The simulation ignores the resource's own policy (it accepts none for a role) and the context of
    a real call. An action that only these could allow causes a notice. An explicit deny is always a
    problem.
    """
    problems, notices = [], []
    denied = [result for result in results if result["EvalDecision"] != "allowed"]
    sure = [result for result in denied if _is_sure(result, owner_may_allow)]
    if sure:
        problems.append(
            f"{_ROLE}: {role_arn} is not allowed to call {_actions(sure)} on {need.resource}"
            f" ({_denial_reason(sure)}); allow it in the role's policies"
        )
    if unsure := [result for result in denied if result not in sure]:
        notices.append(
            f"{_ROLE}: the policies of {role_arn} alone do not allow {_actions(unsure)} on"
            f" {need.resource}; check the resource's policy and any conditions"
        )
    return Findings(tuple(problems), tuple(notices))


def judge_permissions(role_arn: str, simulated: Iterable[Simulated]) -> Findings:
    """Return findings about the actions of a job that the role does not allow."""
    return combine(judge_simulation(role_arn, *one) for one in simulated)


def query_trust(context: RuleContext) -> Mapping[str, Any]:
    """Query IAM for the jobs' role, including its trust policy."""
    arn = context.config.platform.role_arn
    problem = f"{_ROLE}: {arn} does not exist; create it, or correct the ARN"
    with reported(problem, "NoSuchEntity"):
        return dict(context.client("iam").get_role(RoleName=arn.rpartition("/")[2])["Role"])


def simulate_permissions(context: RuleContext) -> list[Simulated]:
    """Simulate a job's actions in IAM, one call per resource.

    The role rule reports a missing role.
    """
    simulated = []
    with suppress_codes("NoSuchEntity"):
        for need in needs_of(context.config, _runs_in_a_layer(context)):
            results = _simulate(context, need)
            is_denied = any(result["EvalDecision"] == "implicitDeny" for result in results)
            simulated.append((need, results, is_denied and _owner_has_policy(context, need)))
        return simulated
    return []


def _runs_in_a_layer(context: RuleContext) -> bool:
    """Return True if jobs run in a layer of packages on the given image.

    That layer is stored in image.repository.
    """
    config = context.config
    if config.image.uri is None or not context.facts.files.has_layer:
        return False
    return (
        config.platform.create_missing
        or push_problem(context.client("ecr"), config.image.repository) is None
    )


def _simulate(context: RuleContext, need: Need) -> list[Mapping[str, Any]]:
    answer = context.client("iam").simulate_principal_policy(
        PolicySourceArn=context.config.platform.role_arn,
        ActionNames=list(need.actions),
        ResourceArns=[need.resource],
        ContextEntries=[
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in need.context
        ],
    )
    return list(answer["EvaluationResults"])


def judge_key(field: str, key: str, metadata: Mapping[str, Any]) -> Findings:
    """Check DescribeKey's KeyMetadata: the key is symmetric and enabled."""
    if metadata["KeyState"] != "Enabled":
        return Findings(
            (f"{field}: {key} is {metadata['KeyState']}; enable it, or use another key",)
        )
    if metadata.get("KeySpec", "SYMMETRIC_DEFAULT") != "SYMMETRIC_DEFAULT":
        return Findings(
            (
                f"{field}: {key} has the key spec {metadata['KeySpec']}; use a symmetric"
                " encryption key",
            )
        )
    return Findings()


def key_of(facts: Facts, field: str) -> str | None:
    """Return the key that a field of KEYS names."""
    return (
        facts.training.output_kms_key_id if "output" in field else facts.training.volume_kms_key_id
    )


def judge_key_use(facts: Facts, field: str, answer: KeyResponse) -> Findings:
    """Check the key and its use by the role.

    The key's own policy may allow what the role's policies do not.
    """
    metadata, results = answer
    found = judge_key(field, str(key_of(facts, field)), metadata)
    if found.problems:
        return found
    need = Need(KEYS[field], metadata["Arn"])
    return judge_simulation(facts.config.platform.role_arn, need, results, owner_may_allow=True)


def query_key(context: RuleContext, field: str) -> KeyResponse:
    """Query KMS for the key, and simulate its use in IAM.

    If IAM does not respond, the permissions rule reports it.
    """
    with reported(f"{field}: {{}}; use a key in platform.region", *_NO_SUCH_KEY):
        metadata = context.client("kms").describe_key(KeyId=key_of(context.facts, field))[
            "KeyMetadata"
        ]
    with suppress_codes("NoSuchEntity", *NO_PERMISSION, *NO_SUCH_SERVICE):
        return metadata, _simulate(context, Need(KEYS[field], metadata["Arn"]))
    return metadata, []


def _owner_has_policy(context: RuleContext, need: Need) -> bool:
    """Return True if the bucket or repository has its own policy, which may allow more."""
    if need.owner is None:
        return False
    with suppress_codes(*_NO_POLICY):
        with suppress_codes(*NO_PERMISSION):
            if need.actions[0].startswith("s3:"):
                context.client("s3").get_bucket_policy(Bucket=need.owner)
            else:
                account, region = need.resource.split(":")[4], need.resource.split(":")[3]
                context.client("ecr", region).get_repository_policy(
                    registryId=account, repositoryName=need.owner
                )
        return True
    return False


def _is_sure(result: Mapping[str, Any], owner_may_allow: bool) -> bool:
    if result["EvalDecision"] == "explicitDeny" or not _is_allowed_by_organization(result):
        return True
    return not owner_may_allow and not result.get("MissingContextValues")


def _is_allowed_by_organization(result: Mapping[str, Any]) -> bool:
    return bool(result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True))


def _denial_reason(results: list[Mapping[str, Any]]) -> str:
    if not all(map(_is_allowed_by_organization, results)):
        return "an organization policy denies it"
    return (
        "a policy explicitly denies it"
        if any(one["EvalDecision"] == "explicitDeny" for one in results)
        else "nothing allows it"
    )


def _actions(results: list[Mapping[str, Any]]) -> str:
    return ", ".join(result["EvalActionName"] for result in results)


def _trusts_sagemaker(statement: Mapping[str, Any]) -> bool:
    principal = statement.get("Principal", {})
    services = _as_list(principal.get("Service", [])) if isinstance(principal, dict) else []
    is_allowed = statement.get("Effect") == "Allow" and _applies_to("sts:AssumeRole", statement)
    return is_allowed and _PRINCIPAL in services


def _applies_to(action: str, statement: Mapping[str, Any]) -> bool:
    """Return True if a policy's statement is about the action.

    IAM ignores the case of actions and allows the wildcards * and ?.
    """
    patterns = _as_list(statement.get("Action", statement.get("NotAction", [])))
    is_listed = any(fnmatchcase(action.lower(), str(each).lower()) for each in patterns)
    return is_listed != ("NotAction" in statement)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _partition(role_arn: str) -> str:
    return role_arn.split(":")[1]
