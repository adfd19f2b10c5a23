from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.network import (
    judge_groups,
    judge_one_network,
    judge_subnets,
)
from tests.nodesweep.launch.sagemaker.preflight.questions import asking, clients, question
from tests.plain import plain

Configs = Callable[..., BenchmarkConfig]
ask_subnets, ask_groups = asking("subnets"), asking("security groups")
FROM_ITSELF = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}
FROM_LIST = {"IpProtocol": "-1", "PrefixListIds": [{"PrefixListId": "pl-1"}]}
TCP_FROM_ITSELF = {**FROM_ITSELF, "IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535}


def open_to(*ranges: str) -> dict[str, Any]:
    return {"IpProtocol": "-1", "IpRanges": [{"CidrIp": each} for each in ranges]}


ANYWHERE = open_to("0.0.0.0/0")


def subnet(
    zone: str = "us-east-1a", free: int = 10, vpc: str = "vpc-1", cidr: str = "10.0.1.0/24"
) -> dict[str, Any]:
    return {
        "AvailabilityZone": zone,
        "AvailableIpAddressCount": free,
        "VpcId": vpc,
        "CidrBlock": cidr,
    }


def group(
    inbound: list[Any], outbound: list[Any], id: str = "sg-1", vpc: str = "vpc-1"
) -> dict[str, Any]:
    return {"GroupId": id, "VpcId": vpc, "IpPermissions": inbound, "IpPermissionsEgress": outbound}


def test_one_zone_with_room_passes() -> None:
    found = judge_subnets([subnet(free=2), subnet(free=2)], peak=4, most=4)
    assert (found.problems, found.notices) == ((), ())


def test_two_zones_are_a_problem_of_distributed_jobs_alone(snapshot: SnapshotAssertion) -> None:
    apart = [subnet(), subnet("us-east-1b")]
    assert judge_subnets(apart, 4, 4).problems[0] == snapshot
    single = judge_subnets(apart, 1, 1)
    assert single.problems == ()
    assert single.notices[0] == snapshot


def test_too_few_free_addresses_are_a_problem(snapshot: SnapshotAssertion) -> None:
    assert judge_subnets([subnet(free=1), subnet(free=2)], 4, 4).problems == snapshot


def test_subnets_of_two_networks_are_a_problem(snapshot: SnapshotAssertion) -> None:
    problems = judge_subnets([subnet(), subnet(vpc="vpc-2")], 1, 1).problems
    assert problems == snapshot


@pytest.mark.parametrize("inbound", [FROM_ITSELF, ANYWHERE])
@pytest.mark.parametrize("outbound", [FROM_ITSELF, ANYWHERE])
def test_group_open_to_itself_or_to_all_addresses_passes(
    inbound: dict[str, Any], outbound: dict[str, Any]
) -> None:
    found = judge_groups([group([inbound], [outbound])], has_efa=False)
    assert (found.problems, found.notices) == ((), ())


@pytest.mark.parametrize(
    ("rule", "subnets", "problems", "notices"),
    [
        (open_to("10.0.0.0/8"), ["10.0.1.0/24"], 0, 0),
        (open_to("10.0.1.0/25", "10.0.1.128/25"), ["10.0.1.0/24"], 0, 0),
        (open_to("10.0.1.0/24"), ["10.0.1.0/24", "10.0.2.0/24"], 2, 0),
        (open_to("10.0.1.0/25"), ["10.0.1.0/24"], 2, 0),
        (open_to("10.0.0.0/8"), [], 0, 2),
        (FROM_LIST, ["10.0.1.0/24"], 0, 2),
    ],
)
def test_addresses_are_compared_with_those_of_the_subnets(
    rule: Any, subnets: list[str], problems: int, notices: int, snapshot: SnapshotAssertion
) -> None:
    rows = [subnet(cidr=each) for each in subnets]
    found = judge_groups([group([rule], [rule])], False, rows)
    assert (len(found.problems), len(found.notices)) == (problems, notices)
    assert (found.problems or found.notices)[:1] == snapshot


@pytest.mark.parametrize("inbound", [[], [TCP_FROM_ITSELF], [open_to("192.0.2.0/24")]])
def test_group_closed_inwards_makes_jobs_hang(
    inbound: list[Any], snapshot: SnapshotAssertion
) -> None:
    assert judge_groups([group(inbound, [FROM_ITSELF])], False, [subnet()]).problems == snapshot


@pytest.mark.parametrize(
    "outbound",
    [[], [TCP_FROM_ITSELF], [open_to("192.0.2.0/24")]],
)
def test_group_closed_outwards_makes_jobs_hang(
    outbound: list[Any], snapshot: SnapshotAssertion
) -> None:
    assert judge_groups([group([FROM_ITSELF], outbound)], False, [subnet()]).problems == snapshot


def test_efa_wants_an_outbound_rule_to_the_group_itself(snapshot: SnapshotAssertion) -> None:
    by_address = judge_groups([group([FROM_ITSELF], [ANYWHERE])], has_efa=True)
    assert by_address.problems == ()
    assert by_address.notices[0] == snapshot
    assert judge_groups([group([FROM_ITSELF], [FROM_ITSELF])], has_efa=True).notices == ()
    unknown = judge_groups([group([FROM_ITSELF], [ANYWHERE])], has_efa=None)
    assert unknown.notices[0] == snapshot


def test_efa_needs_an_inbound_rule_from_the_group_itself(snapshot: SnapshotAssertion) -> None:
    by_address = [group([ANYWHERE], [FROM_ITSELF])]
    assert judge_groups(by_address, has_efa=True).problems == snapshot
    unknown = judge_groups(by_address, has_efa=None)
    assert unknown.problems == ()
    assert unknown.notices == snapshot


def test_nodes_carry_all_groups_so_that_one_may_allow_the_other() -> None:
    both = [
        group([], [], id="sg-2"),
        group([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-2"}]}], [ANYWHERE]),
    ]
    assert judge_groups(both, has_efa=False).problems == ()


def test_groups_of_two_networks_are_a_problem(snapshot: SnapshotAssertion) -> None:
    open_groups = [group([FROM_ITSELF], [FROM_ITSELF]), group([], [], id="sg-2", vpc="vpc-2")]
    assert judge_groups(open_groups, has_efa=False).problems[0] == snapshot


@pytest.fixture
def network(aws: Callable[[str], Any]) -> tuple[Any, str, str]:
    """Return (EC2 client, subnet with 11 free addresses, the VPC's group, which is open to
    itself)."""
    ec2 = aws("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/28", AvailabilityZone="us-east-1a")[
        "Subnet"
    ]["SubnetId"]
    group_id = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)[
        "GroupId"
    ]
    ec2.authorize_security_group_ingress(
        GroupId=group_id,
        IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}],
    )
    return ec2, made, group_id


def in_vpc(make_config: Configs, subnet_id: str, group_id: str) -> BenchmarkConfig:
    return make_config(training={"vpc": {"subnets": [subnet_id], "security_group_ids": [group_id]}})


def test_ec2_is_asked(
    network: tuple[Any, str, str], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    ec2, subnet_id, group_id = network
    config = in_vpc(make_config, subnet_id, group_id)
    assert ask_subnets(question(config, clients(ec2=ec2), 11)).problems == ()
    assert ask_subnets(question(config, clients(ec2=ec2), 12)).problems[0] == snapshot
    assert ask_groups(question(config, clients(ec2=ec2))).problems == ()
    pair = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
    ec2.revoke_security_group_ingress(GroupId=group_id, IpPermissions=pair)
    [problem] = ask_groups(question(config, clients(ec2=ec2))).problems
    assert plain(problem, group=group_id, subnet=subnet_id) == snapshot


def test_single_nodes_need_no_open_group(
    network: tuple[Any, str, str], make_config: Configs
) -> None:
    ec2, subnet_id, _ = network
    vpc = ec2.describe_subnets(SubnetIds=[subnet_id])["Subnets"][0]["VpcId"]
    closed = ec2.create_security_group(GroupName="closed", Description="closed", VpcId=vpc)
    config = in_vpc(make_config, subnet_id, closed["GroupId"])
    assert ask_groups(question(config, clients(ec2=ec2))).problems != ()
    alone = config.model_copy(
        update={"sweep": config.sweep.model_copy(update={"node_counts": (1,)})}
    )
    assert ask_groups(question(alone, clients(ec2=ec2))).problems == ()


def test_missing_subnet_and_group_are_problems(
    network: tuple[Any, str, str], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    config = in_vpc(make_config, "subnet-12345678", "sg-12345678")
    asked = question(config, clients(ec2=network[0]))
    assert ask_subnets(asked).problems == snapshot
    assert ask_groups(asked).problems[0] == snapshot


def test_groups_of_another_network_than_the_subnets_are_a_problem(
    snapshot: SnapshotAssertion,
) -> None:
    assert judge_one_network([subnet(), subnet()], [group([], [])]).problems == ()
    assert judge_one_network([subnet(vpc="vpc-2")], [group([], [])]).problems == snapshot
    assert judge_one_network([subnet(), subnet(vpc="vpc-2")], [group([], [])]).problems == (), (
        "the subnets' own rule"
    )


def test_ec2_is_asked_for_both_sides(network: tuple[Any, str, str], make_config: Configs) -> None:
    ec2, _, group_id = network
    other = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    apart = ec2.create_subnet(VpcId=other, CidrBlock="10.1.1.0/28")["Subnet"]["SubnetId"]
    [problem] = ask_groups(
        question(in_vpc(make_config, apart, group_id), clients(ec2=ec2))
    ).problems
    assert f"subnets to {other}; " in problem
    gone = in_vpc(make_config, "subnet-12345678", group_id)
    assert ask_groups(question(gone, clients(ec2=ec2))).problems == (), "the subnets' own rule"
