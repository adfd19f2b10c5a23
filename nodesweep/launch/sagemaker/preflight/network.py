"""Online rules for training.vpc: subnets with room in one zone, groups that connect the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodesweep.errors import suppress_codes
from nodesweep.launch.sagemaker.preflight.rule import NO_PERMISSION, RuleContext, reported
from nodesweep.scaling.rules.rule import Findings

_ANYWHERE = "0.0.0.0/0"
MISSING = frozenset(
    {"InvalidSubnetID.NotFound", "InvalidSubnetId.Malformed", "InvalidSubnetID.Malformed",
     "InvalidGroup.NotFound", "InvalidGroupId.Malformed", "InvalidGroupId.NotFound",
     "InvalidSecurityGroupID.NotFound"}
)  # fmt: skip
_SUBNETS, _GROUPS = "training.vpc.subnets", "training.vpc.security_group_ids"
Rows = Sequence[Mapping[str, Any]]
"""Rows of an EC2 response."""


def judge_subnets(subnets: Rows, peak: int, most: int) -> Findings:
    """Check DescribeSubnets' rows against `peak` nodes at once and `most` nodes of one job.

    Each node takes an address.
    """
    problems, notices = [], []
    zones = sorted({str(subnet["AvailabilityZone"]) for subnet in subnets})
    if len(zones) > 1:
        text = f"{_SUBNETS}: the subnets are in {' and '.join(zones)}"
        if most > 1:
            problems.append(
                f"{text}; communication between nodes in different zones is slow, and EFA does not"
                " work across zones; use subnets in one zone"
            )
        else:
            notices.append(f"{text}; the jobs of a sweep may run in different zones")
    networks = sorted({str(subnet["VpcId"]) for subnet in subnets})
    if len(networks) > 1:
        problems.append(
            f"{_SUBNETS}: the subnets belong to {' and '.join(networks)}; use subnets in one VPC"
        )
    free = sum(int(subnet["AvailableIpAddressCount"]) for subnet in subnets)
    if free < peak:
        problems.append(
            f"{_SUBNETS}: {free} free addresses for up to {peak} nodes at once; "
            "use a larger subnet, or lower sweep.max_parallel_jobs or the node counts"
        )
    return Findings(tuple(problems), tuple(notices))


def judge_groups(groups: Rows, has_efa: bool | None) -> Findings:
    """Check DescribeSecurityGroups' rows: nodes can reach one another.

    Every node has all groups, so one rule of any group is enough per direction. Inbound: all
    protocols from one of the groups themselves. Outbound: the same, or all protocols to anywhere;
    EFA traffic is not IP, so an address range does not allow it (AWS EC2 user guide, "Get started
    with EFA").
    """
    ids = {str(group["GroupId"]) for group in groups}
    problems, notices = [], []
    networks = sorted({str(group["VpcId"]) for group in groups})
    if len(networks) > 1:
        problems.append(
            f"{_GROUPS}: the groups belong to {' and '.join(networks)}; use groups of the subnets'"
            " VPC"
        )
    if not any(_is_from(rule, ids) for rule in _open_rules(groups, "IpPermissions")):
        problems.append(
            f"{_GROUPS}: no inbound rule allows all traffic from {_or(ids)}, so nodes can't reach"
            " each other and jobs hang; add one: all protocols, source the group itself"
        )
    outbound = list(_open_rules(groups, "IpPermissionsEgress"))
    to_itself = any(_is_from(rule, ids) for rule in outbound)
    if not to_itself and not any(_is_anywhere(rule) for rule in outbound):
        problems.append(
            f"{_GROUPS}: no outbound rule allows all traffic to {_or(ids)}, so nodes can't reach"
            " each other and jobs hang; add one: all protocols, destination the group itself"
        )
    elif not to_itself and has_efa is not False:
        notices.append(
            f"{_GROUPS}: outbound traffic is allowed by address only, which does not cover EFA"
            f"{' (unknown if the instance type has it)' if has_efa is None else ''}; "
            "add an outbound rule: all protocols, destination the group itself"
        )
    return Findings(tuple(problems), tuple(notices))


def judge_one_network(subnets: Rows, groups: Rows) -> Findings:
    """Check that groups and subnets share a VPC, as a network interface requires.

    If the groups or the subnets are in several VPCs, a different rule reports it.
    """
    of_subnets = {str(subnet["VpcId"]) for subnet in subnets}
    of_groups = {str(group["VpcId"]) for group in groups}
    if len(of_subnets) != 1 or len(of_groups) != 1 or of_subnets == of_groups:
        return Findings()
    problem = (
        f"{_GROUPS}: the groups belong to {of_groups.pop()}, but the subnets to {of_subnets.pop()};"
        " use groups and subnets in the same VPC"
    )
    return Findings((problem,))


def query_subnets(context: RuleContext) -> Rows:
    """Query EC2 for the config's subnets."""
    with reported(f"{_SUBNETS}: {{}}; use subnets in platform.region", *MISSING):
        return _subnets(context)


def query_groups(context: RuleContext) -> tuple[Rows, Rows]:
    """Query EC2 for (the security groups, the subnets).

    The subnets are empty if one is unknown or the query is forbidden; the subnet rule reports that.
    """
    vpc = context.config.training.vpc
    assert vpc is not None
    with reported(f"{_GROUPS}: {{}}; use security groups in platform.region", *MISSING):
        ids = list(vpc.security_group_ids)
        groups = context.client("ec2").describe_security_groups(GroupIds=ids)["SecurityGroups"]
    with suppress_codes(*MISSING, *NO_PERMISSION):
        return groups, _subnets(context)
    return groups, ()


def _subnets(context: RuleContext) -> Rows:
    vpc = context.config.training.vpc
    assert vpc is not None
    return list(context.client("ec2").describe_subnets(SubnetIds=list(vpc.subnets))["Subnets"])


def _open_rules(groups: Rows, direction: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rules of all groups that apply to every protocol."""
    for group in groups:
        yield from (rule for rule in group.get(direction, ()) if rule["IpProtocol"] == "-1")


def _is_from(rule: Mapping[str, Any], ids: set[str]) -> bool:
    return any(pair.get("GroupId") in ids for pair in rule.get("UserIdGroupPairs", ()))


def _is_anywhere(rule: Mapping[str, Any]) -> bool:
    return any(row["CidrIp"] == _ANYWHERE for row in rule.get("IpRanges", ()))


def _or(ids: set[str]) -> str:
    return " or ".join(sorted(ids))
