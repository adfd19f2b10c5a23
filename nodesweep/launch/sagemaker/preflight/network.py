"""Online rules for training.vpc: subnets with room in one zone, groups that connect the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, collapse_addresses
from typing import Any

from nodesweep.errors import suppress_codes
from nodesweep.launch.sagemaker.preflight.rule import NO_PERMISSION, RuleContext, reported
from nodesweep.scaling.rules.rule import Findings

_ANYWHERE = IPv4Network("0.0.0.0/0")
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


def judge_groups(groups: Rows, has_efa: bool | None, subnets: Rows = ()) -> Findings:
    """Check DescribeSecurityGroups' rows: nodes can reach one another.

    Every node has all groups, so one rule of any group is enough per direction: all protocols from
    or to one of the groups themselves, or the addresses of the subnets (DescribeSubnets' rows,
    empty if unknown). EFA traffic is not IP, so an address range does not allow it (AWS EC2 user
    guide, "Get started with EFA").
    """
    ids = {str(group["GroupId"]) for group in groups}
    problems, notices = [], []
    networks = sorted({str(group["VpcId"]) for group in groups})
    if len(networks) > 1:
        problems.append(
            f"{_GROUPS}: the groups belong to {' and '.join(networks)}; use groups of the subnets'"
            " VPC"
        )
    for direction, key, to, end in (
        ("inbound", "IpPermissions", "from", "source"),
        ("outbound", "IpPermissionsEgress", "to", "destination"),
    ):
        rules = list(_open_rules(groups, key))
        if any(_is_from(rule, ids) for rule in rules):
            continue
        by_address = _allows_subnets(rules, subnets)
        needed = f"all protocols, {end} the group itself"
        peers = _or(ids) if has_efa else f"{_or(ids)} or the subnets' addresses"
        if by_address is False or (direction == "inbound" and has_efa):
            problems.append(
                f"{_GROUPS}: no {direction} rule allows all traffic {to} {peers}, so nodes can't"
                f" reach each other{'' if by_address is False else ' over EFA'} and jobs hang; add"
                f" one: {needed}"
            )
        elif has_efa is not False:
            notices.append(
                f"{_GROUPS}: {direction} traffic is allowed by address only, which does not cover"
                f" EFA{' (unknown if the instance type has it)' if has_efa is None else ''}; "
                f"add an {direction} rule: {needed}"
            )
        elif by_address is None:
            notices.append(
                f"{_GROUPS}: {direction} traffic is allowed by address only, and it is unknown if"
                " the addresses include the subnets'; if not, nodes can't reach each other and jobs"
                f" hang; to be sure, add an {direction} rule: {needed}"
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


def _allows_subnets(rules: Rows, subnets: Rows) -> bool | None:
    """Return True if the rules' IPv4 ranges include those of all subnets; None if unknown."""
    ranges = list(
        collapse_addresses(
            IPv4Network(row["CidrIp"], strict=False)
            for rule in rules
            for row in rule.get("IpRanges", ())
        )
    )
    known = [IPv4Network(row["CidrBlock"]) for row in subnets if row.get("CidrBlock")]
    if all(any(each.subnet_of(one) for one in ranges) for each in known or [_ANYWHERE]):
        return True
    is_unknown = any(rule.get("PrefixListIds") for rule in rules) or (ranges and not known)
    return None if is_unknown else False


def _or(ids: set[str]) -> str:
    return " or ".join(sorted(ids))
