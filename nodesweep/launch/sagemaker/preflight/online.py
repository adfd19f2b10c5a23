"""All rules that query the account, in the order in which their findings are reported.

To add one, put its query and judge functions in a module in this folder, and its row here;
`python -m nodesweep.launch.sagemaker.preflight.document` generates docs/preflight.md from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.preflight import (
    batch_queue,
    file_systems,
    identity,
    network,
    quota,
    storage,
    training_plan,
)
from nodesweep.launch.sagemaker.preflight.rule import AccountRule, RuleContext, evaluate
from nodesweep.scaling.rules.rule import Facts, Findings, combine


def _on_aws_nodes(facts: Facts) -> bool:
    """Return True for AWS nodes; emulated ones use no role."""
    return not facts.instance.emulated


def _nodes_in_use(facts: Facts) -> tuple[int, int]:
    """Return the most jobs and nodes that are counted together; emulated jobs wait to fit."""
    if facts.instance.emulated:
        return 1, facts.max_nodes
    return facts.config.sweep.max_parallel_jobs, facts.peak_nodes


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


def _key_rule(field: str, actions: str) -> AccountRule[identity.KeyResponse]:
    return AccountRule(
        field,
        (lambda rule_input: identity.judge_key_use(rule_input.facts, field, rule_input.response),),
        action="kms:DescribeKey",
        more_actions=("iam:SimulatePrincipalPolicy",),
        queries=f"the key's ARN, state and spec, and {actions} under the role",
        query=partial(identity.query_key, field=field),
        needed=lambda facts: _on_aws_nodes(facts) and identity.key_of(facts, field) is not None,
        refuses=(
            "a key that does not exist, is disabled or is not symmetric, or to which a policy "
            "explicitly denies access"
        ),
        remedy="use a key in the region, enable it, or allow the role to use it",
        says="access that the role's policies do not allow, but that the key's own policy might",
    )


ACCOUNT_RULES: tuple[AccountRule[Any], ...] = (
    AccountRule(
        "service quotas",
        (
            lambda rule_input: quota.judge_quotas(
                rule_input.facts.training,
                rule_input.response,
                *_nodes_in_use(rule_input.facts),
                rule_input.facts.max_nodes,
                rule_input.facts.peak_nodes_together,
                rule_input.facts.kept_nodes,
            ),
            lambda rule_input: quota.judge_validation_quota(
                rule_input.facts.config.dataset, rule_input.response
            ),
        ),
        per_type=True,
        action="servicequotas:ListServiceQuotas",
        queries=(
            "the account's quotas by name: *TYPE for training job usage* or, for spot, *TYPE "
            "for spot training job usage*; with keep-alive also *TYPE for training warm pool "
            "usage*, and with validation on Spark also *TYPE for processing job usage*"
        ),
        query=quota.query_quotas,
        needed=lambda facts: True,
        refuses=(
            "a quota for the type, or *Number of instances across all training jobs*, that is "
            "below the maximum number of nodes in use simultaneously (the sum of the "
            "`sweep.max_parallel_jobs` largest jobs); *Maximum number of instances per "
            "training job* below the nodes of the largest job; a Processing quota below the "
            "Processing job's instances"
        ),
        remedy=(
            "request an increase in Service Quotas, lower `sweep.max_parallel_jobs`,"
            " or drop the larger node counts"
        ),
        says=(
            "a quota that Service Quotas does not list; a warm pool quota below the sum of the "
            "distinct node counts (each times its jobs in parallel), so that larger jobs wait "
            "until idle pools expire"
        ),
    ),
    AccountRule(
        "the training plan",
        (lambda rule_input: training_plan.judge_plan(rule_input.facts, rule_input.response),),
        per_type=True,
        action="sagemaker:DescribeTrainingPlan",
        queries="`training.training_plan_arn`",
        query=training_plan.query_plan,
        needed=lambda facts: facts.training.training_plan_arn is not None,
        refuses=(
            "a plan that does not exist, is not for training jobs, is not paid for, has "
            "expired, or has not begun yet, so that jobs would wait for up to 2 days; a plan "
            "that reserves another instance type, or fewer instances than the largest job needs"
        ),
        remedy="use an active plan for the type; drop the larger node counts",
        says=(
            "too few free instances for the largest job, or too few in total for all parallel "
            "jobs, so jobs wait; a plan that ends before a job of `max_runtime_seconds` would"
        ),
    ),
    AccountRule(
        "the Batch queue",
        (lambda rule_input: batch_queue.judge_queue(rule_input.facts, rule_input.response),),
        action="batch:DescribeJobQueues",
        more_actions=("batch:DescribeServiceEnvironments", "batch:ListServiceJobs"),
        queries="`platform.batch.queue`",
        query=batch_queue.query_queue,
        needed=lambda facts: facts.config.platform.batch is not None,
        refuses=(
            "a queue that does not exist, is disabled, or is not of type SAGEMAKER_TRAINING; a "
            "service environment that is disabled or has fewer instances than the largest job; "
            "a `share_identifier` that is missing, or that is set although the queue has no "
            "scheduling policy; credentials that are not allowed to list the queue's jobs"
        ),
        remedy=(
            "use an enabled queue for training jobs; drop the larger node counts; set or omit "
            "`share_identifier`; allow `batch:ListServiceJobs`"
        ),
    ),
    AccountRule(
        "subnets",
        (
            lambda rule_input: network.judge_subnets(
                rule_input.response,
                rule_input.facts.peak_nodes_together,
                rule_input.facts.max_nodes,
            ),
        ),
        action="ec2:DescribeSubnets",
        queries="`training.vpc.subnets`",
        query=network.query_subnets,
        needed=_in_a_vpc,
        refuses=(
            "a subnet that does not exist; subnets in several VPCs or, if a job has more than "
            "one node, in several zones; fewer free addresses than nodes in use simultaneously"
        ),
        remedy=(
            "use subnets with enough free addresses in one zone of one VPC in the region; run "
            "fewer jobs in parallel"
        ),
        says="subnets in several zones, if all jobs have a single node",
    ),
    AccountRule(
        "security groups",
        (
            lambda rule_input: (
                network.judge_groups(
                    rule_input.response[0], rule_input.facts.instance.efa, rule_input.response[1]
                )
                if rule_input.facts.max_nodes > 1
                else Findings()
            ),
            lambda rule_input: network.judge_one_network(
                rule_input.response[1], rule_input.response[0]
            ),
        ),
        per_type=True,
        action="ec2:DescribeSecurityGroups",
        more_actions=("ec2:DescribeSubnets",),
        queries="`training.vpc.security_group_ids`",
        query=network.query_groups,
        needed=_in_a_vpc,
        refuses=(
            "a group that does not exist; groups in several VPCs, or not in the subnets' VPC; "
            "for multi-node jobs, which would hang, no inbound or no outbound rule that allows all "
            "protocols for one of the groups or for the subnets' addresses; with EFA, which "
            "addresses don't cover, no such inbound rule for one of the groups"
        ),
        remedy=(
            "use groups in the subnets' VPC; add rules that allow all protocols from and to "
            "the group itself"
        ),
        says=(
            "with EFA, outbound traffic that is allowed only by address and not to the group "
            "itself; addresses that may not include the subnets'"
        ),
    ),
    AccountRule(
        "FSx file systems",
        (
            lambda rule_input: file_systems.judge_all_fsx(
                rule_input.facts.config.platform.region, rule_input.response
            ),
        ),
        action="fsx:DescribeFileSystems",
        more_actions=("ec2:DescribeSubnets",),
        queries="channels of type FSxLustre",
        query=file_systems.query_fsx,
        needed=partial(_mounts, "FSxLustre"),
        refuses=(
            "a file system that does not exist, is of another type or is not AVAILABLE; a "
            "`directory_path` that does not begin with the mount name; subnets in another zone "
            '("you need to specify a VPC subnet which maps to this Availability Zone": '
            "SageMaker developer guide, *Access Training Data*)"
        ),
        remedy="correct the ID, type or path; use subnets in the file system's zone",
        says="a file system in another VPC",
    ),
    AccountRule(
        "EFS mount targets",
        (
            lambda rule_input: file_systems.judge_all_efs(
                rule_input.facts.config.platform.region, rule_input.response
            ),
        ),
        action="elasticfilesystem:DescribeMountTargets",
        more_actions=("ec2:DescribeSubnets",),
        queries="channels of type EFS",
        query=file_systems.query_efs,
        needed=partial(_mounts, "EFS"),
        refuses="a file system that does not exist, or that has no available mount target",
        remedy="correct the ID or type; create a mount target in the zone of the job's subnets",
        says="no mount target in the zone of the job's subnets; mount targets in another VPC",
    ),
    AccountRule(
        "the role",
        (
            lambda rule_input: identity.judge_trust(
                rule_input.facts.config.platform.role_arn, rule_input.response
            ),
        ),
        action="iam:GetRole",
        queries="`platform.role_arn`",
        query=identity.query_trust,
        needed=_on_aws_nodes,
        refuses="a role that does not exist, or that does not trust `sagemaker.amazonaws.com`",
        remedy=(
            "create the role or correct the ARN; in its trust policy, allow `sts:AssumeRole` "
            "for that service"
        ),
    ),
    AccountRule(
        "the role's permissions",
        (
            lambda rule_input: identity.judge_permissions(
                rule_input.facts.config.platform.role_arn, rule_input.response
            ),
        ),
        action="iam:SimulatePrincipalPolicy",
        more_actions=("s3:GetBucketPolicy", "ecr:GetRepositoryPolicy", "ecr:DescribeRepositories"),
        queries="the actions of a job under the role, listed below",
        query=identity.simulate_permissions,
        needed=_on_aws_nodes,
        refuses="an action that a policy explicitly denies, or that no policy allows",
        remedy="in the role's policies, allow the actions that the message names",
        says=(
            "an action that the role's policies do not allow, but that the bucket's or "
            "repository's own policy or a condition might"
        ),
    ),
    *(
        _key_rule(field, " and ".join(f"`{one}`" for one in actions))
        for field, actions in identity.KEYS.items()
    ),
    AccountRule(
        "the bucket",
        (
            lambda rule_input: storage.judge_bucket(
                rule_input.facts.config.platform, rule_input.response
            ),
        ),
        action="s3:GetBucketLocation",
        queries="`platform.bucket`",
        query=storage.query_bucket,
        needed=lambda facts: True,
        refuses=(
            "a bucket that does not exist while `platform.create_missing` is off, or that is "
            "in another region"
        ),
        remedy=(
            "create the bucket or set `platform.create_missing: true`; use a bucket in "
            "`platform.region`"
        ),
        says="a bucket that does not exist yet and that the run will create",
    ),
    AccountRule(
        "the image",
        (
            lambda rule_input: storage.judge_image(
                rule_input.facts.config.image, rule_input.response
            ),
        ),
        action="ecr:BatchGetImage",
        queries="`image.uri`, if it is in ECR, in any account",
        query=storage.query_image,
        needed=storage.has_ecr_image,
        refuses="a repository, tag or digest that does not exist",
        remedy="correct `image.uri`, or omit it to have the image built",
    ),
    AccountRule(
        "the repository",
        (
            lambda rule_input: storage.judge_repository(
                rule_input.facts.config.image, rule_input.response
            ),
        ),
        action="ecr:DescribeRepositories",
        queries=(
            "`image.repository`, if `platform.create_missing` is off and the run might have to "
            "build an image, or a layer of packages on `image.uri`"
        ),
        query=storage.query_repository,
        needed=_pushes,
        refuses="a repository for the image that does not exist",
        remedy="create the repository, or set `platform.create_missing: true`",
        says=(
            "a repository for the layer that does not exist, so every node installs the "
            "packages at every start"
        ),
    ),
)


def run_account_rules(
    context: RuleContext, rules: Sequence[AccountRule[Any]] = ACCOUNT_RULES
) -> Findings:
    """Return all findings of the rules that apply to this sweep; their calls run in parallel."""
    facts = context.facts
    applicable = [rule for rule in rules if rule.needed(facts)]
    with ThreadPoolExecutor(
        max_workers=max(1, len(applicable)), thread_name_prefix="preflight"
    ) as pool:
        found = list(pool.map(lambda rule: evaluate(rule, context), applicable))
    if facts.instance.emulated:
        name = facts.instance.instance_type
        message = f"network, role and price were not checked: {name} is an emulated node"
        found.insert(0, Findings(notices=(message,)))
    return combine(found)


def check_online(facts: Facts) -> Findings:
    """Return the findings for a sweep on its platform, including those per instance type.

    Raises boto3's errors if there are no valid credentials.
    """
    client = clients_of(facts.config.platform)
    of_type = [rule for rule in ACCOUNT_RULES if rule.per_type]
    first, *others = facts.each

    def check_arm(arm: Facts) -> Findings:
        return run_account_rules(
            RuleContext(arm, client), ACCOUNT_RULES if arm is first else of_type
        )

    with ThreadPoolExecutor(1 + len(others), thread_name_prefix="preflight") as pool:
        found = list(pool.map(check_arm, (first, *others)))
    return combine(found) if others else found[0]


def clients_of(platform: PlatformConfig) -> Callable[..., Any]:
    """Return a factory of clients with short timeouts, since a failed query only adds a notice."""

    def client(service: str, region: str = platform.region) -> Any:
        return aws_client(service, platform.model_copy(update={"region": region}), quick=True)

    return client
