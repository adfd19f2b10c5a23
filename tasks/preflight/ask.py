"""Every rule that queries the account, in the order of its findings.

To add one, put its call and its judge into a file of this folder, and its row here;
`python -m nodesweep.tasks.preflight.document` makes docs/preflight.md from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling.rules.rule import Facts, Findings, together
from nodesweep.tasks.platform import TASK_OPTIONS, aws_client
from nodesweep.tasks.preflight import file_systems, identity, network, quota, storage
from nodesweep.tasks.preflight.rule import AccountRule, Question, find
from nodesweep.tasks.task import task


def _on_aws_nodes(facts: Facts) -> bool:
    """Return True for AWS nodes; emulated ones use no quota and no role."""
    return not facts.instance.emulated


def _in_a_vpc(facts: Facts) -> bool:
    """Return True for jobs in a VPC; emulated nodes accept one, but do not join it."""
    return facts.training.vpc is not None and not facts.instance.emulated


def _mounts(kind: str, facts: Facts) -> bool:
    return _in_a_vpc(facts) and any(file_systems.channels_of(facts, kind))


def _pushes(facts: Facts) -> bool:
    """Return True if the run may build an image or a layer, but does not create its repository."""
    return not facts.config.platform.create_missing and (
        facts.config.image.uri is None or facts.files.has_layer
    )


def _key_rule(field: str, actions: str) -> AccountRule[identity.KeyAnswer]:
    return AccountRule(
        field,
        (lambda asked: identity.judge_key_use(asked.facts, field, asked.answer),),
        action="kms:DescribeKey",
        more_actions=("iam:SimulatePrincipalPolicy",),
        asks=f"the key's ARN, state and spec, and {actions} under the role",
        ask=partial(identity.ask_key, field=field),
        needed=lambda facts: _on_aws_nodes(facts) and identity.key_of(facts, field) is not None,
        refuses="there is no such key; it is not enabled or not symmetric; an explicit deny",
        remedy="name a key in the region, enable it, allow the role to use it",
        says="not allowed by the role alone: the key's own policy may allow it",
    )


ACCOUNT_RULES: tuple[AccountRule[Any], ...] = (
    AccountRule(
        "service quotas",
        (
            lambda asked: quota.judge_quotas(
                asked.facts.config,
                asked.answer,
                asked.facts.peak_nodes,
                asked.facts.most_nodes,
                asked.facts.peak_nodes_together,
            ),
            lambda asked: quota.judge_validation_quota(asked.facts.config, asked.answer),
        ),
        per_type=True,
        action="servicequotas:ListServiceQuotas",
        asks=(
            "the account's quotas by name: *TYPE for training job usage*, with spot *TYPE for "
            "spot training job usage*, with keep-alive also *TYPE for training warm pool usage*, "
            "with validation on Spark also *TYPE for processing job usage*"
        ),
        ask=quota.ask_quotas,
        needed=_on_aws_nodes,
        refuses=(
            "fewer than the nodes that can be in use at once: the sum of the"
            " `sweep.max_parallel_jobs` largest jobs. *Maximum number of instances per training"
            " job* below the largest job, or *Number of instances across all training jobs* below"
            " the nodes in use at once. Fewer than the Processing job's instances"
        ),
        remedy=(
            "request an increase in Service Quotas, lower `sweep.max_parallel_jobs`,"
            " or drop the larger node counts"
        ),
        says="a quota that is not listed",
    ),
    AccountRule(
        "subnets",
        (
            lambda asked: network.judge_subnets(
                asked.answer, asked.facts.peak_nodes_together, asked.facts.most_nodes
            ),
        ),
        action="ec2:DescribeSubnets",
        asks="`training.vpc.subnets`",
        ask=network.ask_subnets,
        needed=_in_a_vpc,
        refuses=(
            "one does not exist; several zones, with more than one node per job; several VPCs;"
            " fewer free addresses than nodes in use at once"
        ),
        remedy="subnets in one zone, one VPC and the region, with free addresses; fewer jobs at"
        " once",
        says="several zones, with single-node jobs",
    ),
    AccountRule(
        "security groups",
        (
            lambda asked: (
                network.judge_groups(asked.answer[0], asked.facts.instance.efa)
                if asked.facts.most_nodes > 1
                else Findings()
            ),
            lambda asked: network.judge_one_network(asked.answer[1], asked.answer[0]),
        ),
        per_type=True,
        action="ec2:DescribeSecurityGroups",
        more_actions=("ec2:DescribeSubnets",),
        asks="`training.vpc.security_group_ids`",
        ask=network.ask_groups,
        needed=_in_a_vpc,
        refuses=(
            "one does not exist; several VPCs, or not the subnets' VPC; no inbound rule for all"
            " protocols from one of the groups themselves, or no outbound one to them or to"
            " 0.0.0.0/0: multi-node jobs hang"
        ),
        remedy="add a rule for all protocols from and to the group itself",
        says="EFA, and outbound traffic allowed by address only",
    ),
    AccountRule(
        "FSx file systems",
        (
            lambda asked: file_systems.judge_all_fsx(
                asked.facts.config.platform.region, asked.answer
            ),
        ),
        action="fsx:DescribeFileSystems",
        more_actions=("ec2:DescribeSubnets",),
        asks="channels of type FSxLustre",
        ask=file_systems.ask_fsx,
        needed=partial(_mounts, "FSxLustre"),
        refuses=(
            "it does not exist, is of another type or not AVAILABLE; `directory_path` does not"
            " begin with its mount name; the job's subnets are in another zone: \"you need to"
            ' specify a VPC subnet which maps to this Availability Zone" (SageMaker developer'
            " guide, *Access Training Data*)"
        ),
        remedy="correct the ID, type or path; name subnets in its zone",
        says="it is in another VPC",
    ),
    AccountRule(
        "EFS mount targets",
        (
            lambda asked: file_systems.judge_all_efs(
                asked.facts.config.platform.region, asked.answer
            ),
        ),
        action="elasticfilesystem:DescribeMountTargets",
        more_actions=("ec2:DescribeSubnets",),
        asks="channels of type EFS",
        ask=file_systems.ask_efs,
        needed=partial(_mounts, "EFS"),
        refuses="it does not exist, or has no available mount target",
        remedy="correct the ID or type; create a mount target in the zone of the job's subnets",
        says="none in the zone of the job's subnets; they are in another VPC",
    ),
    AccountRule(
        "the role",
        (lambda asked: identity.judge_trust(asked.facts.config.platform.role_arn, asked.answer),),
        action="iam:GetRole",
        asks="`platform.role_arn`",
        ask=identity.ask_trust,
        needed=_on_aws_nodes,
        refuses="it does not exist, or does not trust `sagemaker.amazonaws.com`",
        remedy=(
            "create it or correct the ARN; allow `sts:AssumeRole` to that service"
            " in its trust policy"
        ),
    ),
    AccountRule(
        "the role's permissions",
        (
            lambda asked: identity.judge_permissions(
                asked.facts.config.platform.role_arn, asked.answer
            ),
        ),
        action="iam:SimulatePrincipalPolicy",
        more_actions=("s3:GetBucketPolicy", "ecr:GetRepositoryPolicy", "ecr:DescribeRepositories"),
        asks="what a job does under the role; see below",
        ask=identity.ask_permissions,
        needed=_on_aws_nodes,
        refuses="an explicit deny, or nothing allows it",
        remedy="allow the actions that the problem names in the role's policies",
        says=(
            "not allowed by the role alone, if the bucket or repository has its own policy or a"
            " condition applies"
        ),
    ),
    *(
        _key_rule(field, " and ".join(f"`{one}`" for one in actions))
        for field, actions in identity.KEYS.items()
    ),
    AccountRule(
        "the bucket",
        (lambda asked: storage.judge_bucket(asked.facts.config.platform, asked.answer),),
        action="s3:GetBucketLocation",
        asks="`platform.bucket`",
        ask=storage.ask_bucket,
        needed=lambda facts: True,
        refuses="it does not exist and `platform.create_missing` is off; it is in another region",
        remedy=(
            "create it or set `platform.create_missing: true`; use a bucket in `platform.region`"
        ),
        says="it does not exist yet and is created",
    ),
    AccountRule(
        "the image",
        (lambda asked: storage.judge_image(asked.facts.config, asked.answer),),
        action="ecr:BatchGetImage",
        asks="`image.uri`, if it is in ECR, in any account",
        ask=storage.ask_image,
        needed=storage.has_ecr_image,
        refuses="no such repository, tag or digest",
        remedy="correct it, or omit it to have the image built",
    ),
    AccountRule(
        "the repository",
        (lambda asked: storage.judge_repository(asked.facts.config, asked.answer),),
        action="ecr:DescribeRepositories",
        asks=(
            "`image.repository`, if `platform.create_missing` is off and an image, or a layer of"
            " packages on the given one, may have to be built"
        ),
        ask=storage.ask_repository,
        needed=_pushes,
        refuses="there is none for the image",
        remedy="create it, or set `platform.create_missing: true`",
        says="there is none for the layer, so every node installs the packages at every start",
    ),
)


def ask_rules(question: Question, rules: Sequence[AccountRule[Any]] = ACCOUNT_RULES) -> Findings:
    """Return all findings of the rules that apply to this sweep; their calls run in parallel."""
    facts = question.facts
    asked = [rule for rule in rules if rule.needed(facts)]
    with ThreadPoolExecutor(max_workers=max(1, len(asked)), thread_name_prefix="preflight") as pool:
        found = list(pool.map(lambda rule: find(rule, question), asked))
    if facts.instance.emulated:
        name = facts.instance.instance_type
        said = f"quota, network, role and price were not checked: {name} is an emulated node"
        found.insert(0, Findings(notices=(said,)))
    return together(found)


def check_online(facts: Facts) -> Findings:
    """Return the findings for a sweep on its platform, including those per instance type.

    Raises boto3's errors if there are no valid credentials.
    """
    client = _clients(facts.config.platform)
    of_type = [rule for rule in ACCOUNT_RULES if rule.per_type]
    first, *others = facts.each

    def ask(arm: Facts) -> Findings:
        return ask_rules(Question(arm, client), ACCOUNT_RULES if arm is first else of_type)

    with ThreadPoolExecutor(1 + len(others), thread_name_prefix="preflight") as pool:
        found = list(pool.map(ask, (first, *others)))
    return together(found) if others else found[0]


def _clients(platform: PlatformConfig) -> Callable[..., Any]:
    """Return a factory of clients that give up early: an unanswered query is only a notice."""

    def client(service: str, region: str = platform.region) -> Any:
        return aws_client(service, platform.model_copy(update={"region": region}), quick=True)

    return client


@task(name="preflight-online", **TASK_OPTIONS)
def ask_platform(facts: Facts) -> Findings:
    """Run the online preflight rules.

    Queries Service Quotas, EC2, FSx, EFS, IAM, KMS, S3 and ECR.
    """
    return check_online(facts)
