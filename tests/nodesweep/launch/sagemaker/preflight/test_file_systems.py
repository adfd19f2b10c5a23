from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.job import FileSystemConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.file_systems import judge_efs, judge_fsx
from nodesweep.launch.sagemaker.preflight.online import ACCOUNT_RULES
from nodesweep.scaling.rules.rule import Findings
from tests.nodesweep.launch.sagemaker.preflight.questions import asking, clients, question
from tests.plain import plain

Configs = Callable[..., BenchmarkConfig]
ask_fsx, ask_efs = asking("FSx file systems"), asking("EFS mount targets")
FIELD = "training.extra_channels.corpus"
FSX = "fs-0123456789abcdef0"
EFS = "fs-0123456789abcdef1"
NODES = {"subnet-1": {"SubnetId": "subnet-1", "AvailabilityZone": "us-east-1a", "VpcId": "vpc-1"}}
ELSEWHERE = {
    "subnet-9": {"SubnetId": "subnet-9", "AvailabilityZone": "us-east-1b", "VpcId": "vpc-1"}
}


def lustre(path: str = "/abcd1234/corpus") -> FileSystemConfig:
    return FileSystemConfig(type="FSxLustre", id=FSX, directory_path=path)


def elastic() -> FileSystemConfig:
    return FileSystemConfig(type="EFS", id=EFS, directory_path="/corpus")


def system(**members: Any) -> dict[str, Any]:
    found = {
        "FileSystemId": FSX,
        "FileSystemType": "LUSTRE",
        "Lifecycle": "AVAILABLE",
        "VpcId": "vpc-1",
        "SubnetIds": ["subnet-1"],
        "LustreConfiguration": {"MountName": "abcd1234"},
    }
    return {**found, **members}


def target(**members: Any) -> dict[str, Any]:
    return {
        "LifeCycleState": "available",
        "AvailabilityZoneName": "us-east-1a",
        "VpcId": "vpc-1",
        **members,
    }


@pytest.mark.parametrize("path", ["/abcd1234", "/abcd1234/corpus", "/abcd1234/a/b"])
@pytest.mark.parametrize("state", ["AVAILABLE", "UPDATING"])
def test_a_usable_file_system_in_the_nodes_zone_passes(path: str, state: str) -> None:
    assert judge_fsx(FIELD, lustre(path), system(Lifecycle=state), NODES, NODES) == Findings()


@pytest.mark.parametrize("path", ["/fsx/corpus", "/", "/abcd12345/corpus", "/corpus/abcd1234/x"])
def test_a_path_without_the_mount_name_is_a_problem(path: str, snapshot: SnapshotAssertion) -> None:
    assert judge_fsx(FIELD, lustre(path), system(), NODES, NODES).problems == snapshot


@pytest.mark.parametrize(
    "state", ["CREATING", "FAILED", "DELETING", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE"]
)
def test_a_file_system_that_is_not_available_is_a_problem(
    state: str, snapshot: SnapshotAssertion
) -> None:
    assert judge_fsx(FIELD, lustre(), system(Lifecycle=state), NODES, NODES).problems == snapshot


@pytest.mark.parametrize("kind", ["WINDOWS", "ONTAP", "OPENZFS"])
def test_another_type_is_a_problem(kind: str, snapshot: SnapshotAssertion) -> None:
    asked = judge_fsx(
        FIELD, lustre("/x"), system(FileSystemType=kind, LustreConfiguration={}), NODES, ELSEWHERE
    )
    assert asked.problems == snapshot


def test_nodes_in_another_zone_are_a_problem(snapshot: SnapshotAssertion) -> None:
    assert judge_fsx(FIELD, lustre(), system(), NODES, ELSEWHERE).problems == snapshot
    some = judge_fsx(FIELD, lustre(), system(), {**NODES, **ELSEWHERE}, ELSEWHERE).problems
    assert some[0] == snapshot


def test_another_network_is_a_notice(snapshot: SnapshotAssertion) -> None:
    found = judge_fsx(FIELD, lustre(), system(VpcId="vpc-2"), NODES, NODES)
    assert found.problems == ()
    assert found.notices == snapshot


def test_what_is_not_known_is_not_judged() -> None:
    assert judge_fsx(FIELD, lustre("/anything"), {"FileSystemId": FSX}, {}, {}) == Findings()
    assert judge_efs(FIELD, elastic(), [{"LifeCycleState": "available"}], NODES) == Findings()


def test_a_mount_target_in_the_zone_passes() -> None:
    other = target(AvailabilityZoneName="us-east-1b")
    assert judge_efs(FIELD, elastic(), [other, target()], NODES) == Findings()


@pytest.mark.parametrize(
    ("targets", "states"), [([], "none"), ([target(LifeCycleState="creating")], "creating")]
)
def test_no_mount_target_is_a_problem(
    targets: list[Any], states: str, snapshot: SnapshotAssertion
) -> None:
    [problem] = judge_efs(FIELD, elastic(), targets, NODES).problems
    assert problem == snapshot


def test_no_mount_target_in_the_zone_is_a_notice(snapshot: SnapshotAssertion) -> None:
    found = judge_efs(FIELD, elastic(), [target(AvailabilityZoneName="us-east-1b")], NODES)
    assert found.problems == ()
    assert found.notices[0] == snapshot
    [notice] = judge_efs(FIELD, elastic(), [target(VpcId="vpc-2")], NODES).notices
    assert notice == snapshot


class Fsx:
    """An FSx with one file system, or with none."""

    def __init__(self, answer: dict[str, Any] | str | None) -> None:
        self.answer = answer

    def describe_file_systems(self, FileSystemIds: list[str]) -> dict[str, Any]:
        assert FileSystemIds == [FSX]
        if isinstance(self.answer, str):
            error: Any = {
                "Error": {"Code": self.answer, "Message": "no"},
                "ResponseMetadata": {"HTTPStatusCode": 400},
            }
            raise ClientError(error, "DescribeFileSystems")
        return {"FileSystems": [self.answer] if self.answer else []}


@pytest.fixture
def subnets(aws: Callable[[str], Any]) -> tuple[Any, str, str, str]:
    """Return (EC2 client, VPC, a subnet in us-east-1a, a subnet in us-east-1b)."""
    ec2 = aws("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = [
        ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"10.0.{n}.0/24", AvailabilityZone=f"us-east-1{zone}"
        )["Subnet"]
        for n, zone in enumerate("ab")
    ]
    return ec2, vpc, made[0]["SubnetId"], made[1]["SubnetId"]


def mounting(
    make_config: Configs, subnet: str, kind: str = "FSxLustre", id: str = FSX
) -> BenchmarkConfig:
    corpus = {"type": kind, "id": id, "directory_path": "/abcd1234/corpus"}
    vpc = {"subnets": [subnet], "security_group_ids": ["sg-1"]}
    return make_config(training={"vpc": vpc, "extra_channels": {"corpus": corpus}})


def test_fsx_and_ec2_are_asked(
    subnets: tuple[Any, str, str, str], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    ec2, vpc, here, there = subnets
    fsx = Fsx(system(VpcId=vpc, SubnetIds=[here]))
    ask = clients(fsx=fsx, ec2=ec2)
    assert ask_fsx(question(mounting(make_config, here), ask)) == Findings()
    [problem] = ask_fsx(question(mounting(make_config, there), ask)).problems
    assert plain(problem, fsx=FSX, field=FIELD, subnet=there) == snapshot
    gone = ask_fsx(question(mounting(make_config, "subnet-12345678"), ask))
    assert gone == Findings(), "the subnets' own rule"


@pytest.mark.parametrize("code", ["FileSystemNotFound", "BadRequest"])
def test_a_missing_file_system_is_a_problem(
    make_config: Configs, code: str, snapshot: SnapshotAssertion
) -> None:
    asked = question(mounting(make_config, "subnet-1"), clients(fsx=Fsx(code)))
    assert ask_fsx(asked).problems == snapshot


def test_an_endpoint_that_knows_nothing_of_it_is_a_notice(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    found = ask_fsx(question(mounting(make_config, "subnet-1"), clients(fsx=Fsx(None))))
    assert found == snapshot


def test_no_permission_is_a_notice(make_config: Configs, snapshot: SnapshotAssertion) -> None:
    asked = question(mounting(make_config, "subnet-1"), clients(fsx=Fsx("AccessDeniedException")))
    assert ask_fsx(asked) == snapshot


def test_no_permission_for_subnets_leaves_the_rest_judged(make_config: Configs) -> None:
    def refuse(**_: Any) -> None:
        error: Any = {
            "Error": {"Code": "UnauthorizedOperation"},
            "ResponseMetadata": {"HTTPStatusCode": 403},
        }
        raise ClientError(error, "DescribeSubnets")

    ask = clients(
        fsx=Fsx(system(Lifecycle="CREATING")), ec2=SimpleNamespace(describe_subnets=refuse)
    )
    [problem] = ask_fsx(question(mounting(make_config, "subnet-1"), ask)).problems
    assert "is CREATING" in problem


def test_efs_is_asked(
    subnets: tuple[Any, str, str, str],
    aws: Callable[[str], Any],
    make_config: Configs,
    snapshot: SnapshotAssertion,
) -> None:
    ec2, _, here, there = subnets
    efs = aws("efs")
    made = efs.create_file_system(CreationToken="corpus")["FileSystemId"]
    ask = clients(efs=efs, ec2=ec2)
    asked = question(mounting(make_config, here, "EFS", made), ask)
    [problem] = ask_efs(asked).problems
    assert plain(problem, made=made) == snapshot
    efs.create_mount_target(FileSystemId=made, SubnetId=there)
    [notice] = ask_efs(asked).notices
    assert plain(notice, made=made) == snapshot
    efs.create_mount_target(FileSystemId=made, SubnetId=here)
    assert ask_efs(asked) == Findings()
    [problem] = ask_efs(question(mounting(make_config, here, "EFS", EFS), ask)).problems
    assert problem == snapshot


def test_only_the_channels_kind_is_asked_for(make_config: Configs) -> None:
    def needed(config: BenchmarkConfig) -> set[str]:
        return {
            rule.name for rule in ACCOUNT_RULES if rule.needed(question(config, clients()).facts)
        }

    both = {"FSx file systems", "EFS mount targets"}
    assert needed(mounting(make_config, "subnet-1")) & both == {"FSx file systems"}
    assert needed(mounting(make_config, "subnet-1", "EFS")) & both == {"EFS mount targets"}
    assert (
        not needed(
            make_config(training={"extra_channels": {"a": {"type": "S3", "uri": "s3://b/c"}}})
        )
        & both
    )
