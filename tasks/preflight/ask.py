"""Online rules of the preflight: what only the account can tell, one read call each, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from prefect import task

from configs.catalogue import InstanceType
from configs.models import BenchmarkConfig, PlatformConfig
from scaling.planning.plan import SweepPlan
from tasks.platform import TASK_OPTIONS, aws_client
from tasks.preflight.file_systems import ask_efs, ask_fsx, channels_of
from tasks.preflight.identity import ask_permissions, ask_trust
from tasks.preflight.network import ask_groups, ask_subnets
from tasks.preflight.quota import ask_quotas
from tasks.preflight.rule import Findings, OnlineRule, Question, peak_nodes, why_unanswered
from tasks.preflight.storage import ask_bucket, ask_image, has_ecr_image


def _always(question: Question) -> bool:
    return True


def _on_aws_nodes(question: Question) -> bool:
    """An emulated node draws on no quota and assumes no role."""
    return not question.instance.emulated


def _in_a_vpc(question: Question) -> bool:
    """An emulated node accepts a VPC and joins none."""
    return question.config.training.vpc is not None and not question.instance.emulated


def _mounts_fsx(question: Question) -> bool:
    return _in_a_vpc(question) and any(channels_of(question, "FSxLustre"))


def _mounts_efs(question: Question) -> bool:
    return _in_a_vpc(question) and any(channels_of(question, "EFS"))


RULES = (
    OnlineRule("service quotas", "servicequotas:ListServiceQuotas", ask_quotas, _on_aws_nodes),
    OnlineRule("subnets", "ec2:DescribeSubnets", ask_subnets, _in_a_vpc),
    OnlineRule("security groups", "ec2:DescribeSecurityGroups", ask_groups, _in_a_vpc),
    OnlineRule("FSx file systems", "fsx:DescribeFileSystems", ask_fsx, _mounts_fsx),
    OnlineRule("EFS mount targets", "elasticfilesystem:DescribeMountTargets", ask_efs, _mounts_efs),
    OnlineRule("the role", "iam:GetRole", ask_trust, _on_aws_nodes),
    OnlineRule("the role's permissions", "iam:SimulatePrincipalPolicy", ask_permissions, _on_aws_nodes),
    OnlineRule("the bucket", "s3:GetBucketLocation", ask_bucket, _always),
    OnlineRule("the image", "ecr:BatchGetImage", ask_image, has_ecr_image),
)


def ask_rules(question: Question, rules: Sequence[OnlineRule] = RULES) -> Findings:
    """All findings of the rules that this sweep needs; they wait for their answers side by side."""
    asked = [rule for rule in rules if rule.needed(question)]
    with ThreadPoolExecutor(max_workers=max(1, len(asked)), thread_name_prefix="preflight") as pool:
        found = list(pool.map(lambda rule: _ask(rule, question), asked))
    notices = [notice for one in found for notice in one.notices]
    if question.instance.emulated:
        name = question.instance.instance_type
        notices.insert(0, f"quota, network, role and price were not asked for: {name} is an emulated node")
    return Findings(tuple(problem for one in found for problem in one.problems), tuple(notices))


def check_online(config: BenchmarkConfig, instance: InstanceType, plan: SweepPlan) -> Findings:
    """The findings for a sweep on its platform. Raises what boto3 does where there are no valid credentials."""
    peak = peak_nodes(plan, config.sweep.max_parallel_jobs)
    return ask_rules(Question(config, instance, peak, _clients(config.platform)))


def _clients(platform: PlatformConfig) -> Callable[..., Any]:
    """Clients that give up soon: a question that stays unanswered is a notice."""

    def client(service: str, region: str = platform.region) -> Any:
        return aws_client(service, platform.model_copy(update={"region": region}), quick=True)

    return client


def _ask(rule: OnlineRule, question: Question) -> Findings:
    try:
        return rule.ask(question)
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        reason = why_unanswered(error, rule.action)
        if reason is None:
            raise
        return Findings(notices=(f"{rule.name} could not be checked: {reason}",))


@task(name="preflight-online", **TASK_OPTIONS)
def ask_platform(config: BenchmarkConfig, instance: InstanceType, plan: SweepPlan) -> Findings:
    """Service Quotas, EC2, FSx, EFS, IAM, S3 and ECR: what they tell of the sweep."""
    return check_online(config, instance, plan)
