"""Online rules on channels of a file system: it is there and usable, near the nodes, and mounted by its own name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from configs.job import FileSystemConfig
from tasks.errors import error_code
from tasks.preflight.network import MISSING
from tasks.preflight.rule import NO_PERMISSION, NO_SUCH_SERVICE, Findings, Question

_NOT_FOUND = frozenset({"BadRequest", "FileSystemNotFound"})
_FSX_USABLE = frozenset({"AVAILABLE", "UPDATING"})
_SUBNETS = "training.vpc.subnets"

Subnets = Mapping[str, Mapping[str, Any]]
"""DescribeSubnets' rows by subnet id; what could not be asked for is left out."""


def channels_of(question: Question, kind: str) -> Iterator[tuple[str, FileSystemConfig]]:
    """(field, channel) of every channel whose file system is of the kind."""
    for name, channel in question.config.training.extra_channels.items():
        if isinstance(channel, FileSystemConfig) and channel.type == kind:
            yield f"training.extra_channels.{name}", channel


def judge_fsx(
    field: str, channel: FileSystemConfig, system: Mapping[str, Any], nodes: Subnets, own: Subnets
) -> Findings:
    """DescribeFileSystems' row against the channel; `nodes` are the job's subnets, `own` those of the file system.

    The zone: "the file system uses a single Availability Zone, and you need to specify a VPC subnet which maps to this
    Availability Zone ID when running the training job" (SageMaker developer guide, "Access Training Data"). The path:
    `directory_path = "/{MountName}/{FileSystemPath}"` (SageMaker Python SDK, FileSystemInput).
    """
    problems = []
    kind, state = system.get("FileSystemType", "LUSTRE"), system.get("Lifecycle", "AVAILABLE")
    if kind != "LUSTRE":
        return Findings((f"{field}.id: {channel.id} is of type {kind}; a job mounts FSx for Lustre only",))
    if state not in _FSX_USABLE:
        problems.append(f"{field}.id: {channel.id} is {state}; wait until it is AVAILABLE, or name another one")
    mount_name = system.get("LustreConfiguration", {}).get("MountName")
    if mount_name is not None and not f"{channel.directory_path}/".startswith(f"/{mount_name}/"):
        problems.append(
            f"{field}.directory_path: {channel.directory_path} does not begin with /{mount_name}, the mount name of "
            f"{channel.id}, so no job can mount it; write /{mount_name} and the directory below it"
        )
    zones = _zones(own)
    apart = sorted(name for name, row in nodes.items() if zones and row["AvailabilityZone"] not in zones)
    if apart:
        problems.append(
            f"{_SUBNETS}: {channel.id} of {field} is in {' and '.join(sorted(zones))}, {' and '.join(apart)} "
            "elsewhere; a job has to run in the file system's zone, and reads from another one are slow and billed; "
            "name subnets of it"
        )
    return Findings(tuple(problems), _other_network(field, channel, {system.get("VpcId")}, nodes))


def judge_efs(field: str, channel: FileSystemConfig, targets: list[Mapping[str, Any]], nodes: Subnets) -> Findings:
    """DescribeMountTargets' rows against the channel and the job's subnets.

    A file system's name resolves only where the client's own zone has a mount target (EFS user guide, "Mounting on
    Amazon EC2 with a DNS name"); how a job finds one elsewhere is not documented, so that is a notice.
    """
    usable = [target for target in targets if target["LifeCycleState"] == "available"]
    if not usable:
        states = ", ".join(sorted(str(target["LifeCycleState"]) for target in targets)) or "none"
        return Findings(
            (f"{field}.id: {channel.id} has no mount target that is available ({states}), so no job can mount it; "
             f"create one in the zone of {_SUBNETS}",)
        )  # fmt: skip
    notices = _other_network(field, channel, {target.get("VpcId") for target in usable}, nodes)
    zones = {target["AvailabilityZoneName"] for target in usable if "AvailabilityZoneName" in target}
    apart = sorted(_zones(nodes) - zones) if zones else []
    if apart:
        notices += (
            f"{field}.id: {channel.id} has no mount target in {' and '.join(apart)}, the zone of {_SUBNETS}; a job may "
            "fail to mount it, and reads from another zone are slow and billed; create one there",
        )
    return Findings((), notices)


def ask_fsx(question: Question) -> Findings:
    """FSx: every file system of the kind FSxLustre; EC2: the zones of its subnet and the job's."""
    fsx, found = question.client("fsx"), []
    for field, channel in channels_of(question, "FSxLustre"):
        try:
            systems = fsx.describe_file_systems(FileSystemIds=[channel.id])["FileSystems"]
        except ClientError as error:
            found.append(_missing(field, channel, error, question))
            continue
        if not systems:  # the service would have refused; a model of it may not
            found.append(Findings(notices=(f"{field}.id: the endpoint knows nothing of {channel.id}",)))
            continue
        own = _subnets(question, tuple(systems[0].get("SubnetIds", ())))
        found.append(judge_fsx(field, channel, systems[0], _job_subnets(question), own))
    return _together(found)


def ask_efs(question: Question) -> Findings:
    """EFS: the mount targets of every file system of the kind EFS; EC2: the zones of the job's subnets."""
    efs, found = question.client("efs"), []
    for field, channel in channels_of(question, "EFS"):
        try:
            targets = efs.describe_mount_targets(FileSystemId=channel.id)["MountTargets"]
        except ClientError as error:
            found.append(_missing(field, channel, error, question))
            continue
        found.append(judge_efs(field, channel, targets, _job_subnets(question)))
    return _together(found)


def _missing(field: str, channel: FileSystemConfig, error: ClientError, question: Question) -> Findings:
    if error_code(error) not in _NOT_FOUND:
        raise error
    other = "EFS" if channel.type == "FSxLustre" else "FSxLustre"
    region = question.config.platform.region
    return Findings(
        (f"{field}.id: there is no file system {channel.id} of type {channel.type} in {region}; name one of "
         f"platform.region, or set type to {other} where it is of that kind",)
    )  # fmt: skip


def _other_network(field: str, channel: FileSystemConfig, networks: set[Any], nodes: Subnets) -> tuple[str, ...]:
    known = {str(network) for network in networks if network is not None}
    apart = sorted({str(row["VpcId"]) for row in nodes.values()} - known) if known else []
    if not apart:
        return ()
    return (
        f"{field}.id: {channel.id} is in {' and '.join(sorted(known))}, {_SUBNETS} in {' and '.join(apart)}; jobs "
        "reach it only where the two are connected (peering or a transit gateway)",
    )


def _zones(subnets: Subnets) -> set[str]:
    return {str(row["AvailabilityZone"]) for row in subnets.values()}


def _job_subnets(question: Question) -> Subnets:
    vpc = question.config.training.vpc
    assert vpc is not None
    return _subnets(question, vpc.subnets)


def _subnets(question: Question, ids: tuple[str, ...]) -> Subnets:
    """Nothing where there are none of that id, or they may not be asked for: that is the subnets' own rule."""
    if not ids:
        return {}
    try:
        rows = question.client("ec2").describe_subnets(SubnetIds=list(ids))["Subnets"]
    except ClientError as error:
        if error_code(error) not in MISSING | NO_PERMISSION | NO_SUCH_SERVICE:
            raise
        return {}
    return {str(row["SubnetId"]): row for row in rows}


def _together(found: list[Findings]) -> Findings:
    problems = tuple(problem for one in found for problem in one.problems)
    return Findings(problems, tuple(notice for one in found for notice in one.notices))
