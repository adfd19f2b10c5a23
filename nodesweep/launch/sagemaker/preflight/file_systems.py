"""Online rules for file system channels: they exist, are usable, and are near the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from nodesweep.configs.job import FileSystemConfig
from nodesweep.errors import suppress_codes
from nodesweep.launch.sagemaker.preflight.network import MISSING
from nodesweep.launch.sagemaker.preflight.rule import NO_PERMISSION, NO_SUCH_SERVICE, RuleContext
from nodesweep.scaling.rules.rule import Facts, Findings, combine

_NOT_FOUND = frozenset({"BadRequest", "FileSystemNotFound"})
_FSX_USABLE = frozenset({"AVAILABLE", "UPDATING"})
_SUBNETS = "training.vpc.subnets"

Subnets = Mapping[str, Mapping[str, Any]]
"""DescribeSubnets' rows by subnet ID; subnets that could not be queried are missing."""
FsxResponse = tuple[Subnets, list[tuple[str, FileSystemConfig, Mapping[str, Any] | None, Subnets]]]
"""The job's subnets, and (field, channel, DescribeFileSystems' row, its subnets) of each channel.

The row is None if there is no such file system, and empty if the endpoint does not know it.
"""
EfsResponse = tuple[Subnets, list[tuple[str, FileSystemConfig, list[Mapping[str, Any]] | None]]]
"""The job's subnets, and (field, channel, DescribeMountTargets' rows) of each channel.

The rows are None if there is no such file system.
"""


def channels_of(facts: Facts, kind: str) -> Iterator[tuple[str, FileSystemConfig]]:
    """Yield (field, channel) of every channel with a file system of this kind."""
    for name, channel in facts.training.extra_channels.items():
        if isinstance(channel, FileSystemConfig) and channel.type == kind:
            yield f"training.extra_channels.{name}", channel


def judge_fsx(
    field: str, channel: FileSystemConfig, system: Mapping[str, Any], nodes: Subnets, own: Subnets
) -> Findings:
    """Check DescribeFileSystems' row against the channel.

    The zone: "the file system uses a single Availability Zone, and you need to specify a VPC subnet
    which maps to this Availability Zone ID when running the training job" (SageMaker developer
    guide, "Access Training Data"). The path: `directory_path = "/{MountName}/{FileSystemPath}"`
    (SageMaker Python SDK, FileSystemInput).

    Args:
        field: the channel's field.
        channel: the config's channel.
        system: DescribeFileSystems' row.
        nodes: the job's subnets.
        own: the file system's subnets.
    """
    problems = []
    kind, state = system.get("FileSystemType", "LUSTRE"), system.get("Lifecycle", "AVAILABLE")
    if kind != "LUSTRE":
        return Findings(
            (f"{field}.id: {channel.id} is of type {kind}; jobs can mount only FSx for Lustre",)
        )
    if state not in _FSX_USABLE:
        problems.append(
            f"{field}.id: {channel.id} is {state}; wait until it is AVAILABLE, or use another one"
        )
    mount_name = system.get("LustreConfiguration", {}).get("MountName")
    if mount_name is not None and not f"{channel.directory_path}/".startswith(f"/{mount_name}/"):
        problems.append(
            f"{field}.directory_path: {channel.directory_path} does not begin with /{mount_name},"
            f" the mount name of {channel.id}, so no job can mount it; write /{mount_name}"
            " followed by the directory below it"
        )
    zones = _zones(own)
    apart = sorted(
        name for name, row in nodes.items() if zones and row["AvailabilityZone"] not in zones
    )
    if apart:
        problems.append(
            f"{_SUBNETS}: {' and '.join(apart)} {'is' if len(apart) == 1 else 'are'} not in"
            f" {' and '.join(sorted(zones))}, the zone of {channel.id} ({field}); a job"
            " has to run in the file system's zone, and reads across zones are slow and billed; use"
            " subnets in that zone"
        )
    return Findings(tuple(problems), _other_network(field, channel, {system.get("VpcId")}, nodes))


def judge_efs(
    field: str, channel: FileSystemConfig, targets: list[Mapping[str, Any]], nodes: Subnets
) -> Findings:
    """Check DescribeMountTargets' rows against the channel and the job's subnets.

    A file system's name resolves only if the client's own zone has a mount target (EFS user guide,
    "Mounting on Amazon EC2 with a DNS name"). It is undocumented
    whether a job finds one in a different zone, so this is only a notice.
    """
    usable = [target for target in targets if target["LifeCycleState"] == "available"]
    if not usable:
        states = ", ".join(sorted(str(target["LifeCycleState"]) for target in targets)) or "none"
        problem = (
            f"{field}.id: {channel.id} has no available mount target ({states}), so no job can"
            f" mount it; create one in the zone of {_SUBNETS}"
        )
        return Findings((problem,))
    notices = _other_network(field, channel, {target.get("VpcId") for target in usable}, nodes)
    zones = {
        target["AvailabilityZoneName"] for target in usable if "AvailabilityZoneName" in target
    }
    apart = sorted(_zones(nodes) - zones) if zones else []
    if apart:
        notices += (
            (
                f"{field}.id: {channel.id} has no mount target in {' and '.join(apart)}, the zone"
                f" of {_SUBNETS}; a job may fail to mount it, and reads across zones are slow and"
                " billed; create one there"
            ),
        )
    return Findings((), notices)


def judge_all_fsx(region: str, answer: FsxResponse) -> Findings:
    """Check every FSx for Lustre channel."""
    nodes, mounts = answer
    return combine(
        (
            _missing(field, channel, region)
            if system is None
            else (
                judge_fsx(field, channel, system, nodes, own)
                if system
                else Findings(
                    notices=(
                        f"{field}.id: not checked, since the endpoint does not know {channel.id}",
                    )
                )
            )
        )
        for field, channel, system, own in mounts
    )


def judge_all_efs(region: str, answer: EfsResponse) -> Findings:
    """Check every EFS channel."""
    nodes, mounts = answer
    return combine(
        (
            _missing(field, channel, region)
            if targets is None
            else judge_efs(field, channel, targets, nodes)
        )
        for field, channel, targets in mounts
    )


def query_fsx(context: RuleContext) -> FsxResponse:
    """Query FSx for the channels' file systems, and EC2 for the zones of all subnets."""
    fsx, mounts = context.client("fsx"), []
    for field, channel in channels_of(context.facts, "FSxLustre"):
        systems = _rows(
            partial(fsx.describe_file_systems, FileSystemIds=[channel.id]), "FileSystems"
        )
        # The service rejects an unknown ID; an emulation may return no rows.
        system = None if systems is None else next(iter(systems), {})
        own = _subnets(context, tuple((system or {}).get("SubnetIds", ())))
        mounts.append((field, channel, system, own))
    return _job_subnets(context) if any(system for _, _, system, _ in mounts) else {}, mounts


def query_efs(context: RuleContext) -> EfsResponse:
    """Query EFS for the channels' mount targets, and EC2 for the zones of the job's subnets."""
    efs, mounts = context.client("efs"), []
    for field, channel in channels_of(context.facts, "EFS"):
        call = partial(efs.describe_mount_targets, FileSystemId=channel.id)
        mounts.append((field, channel, _rows(call, "MountTargets")))
    return _job_subnets(context) if any(rows is not None for _, _, rows in mounts) else {}, mounts


def _rows(call: Callable[[], Any], member: str) -> list[Mapping[str, Any]] | None:
    """Return the call's rows, or None if there is no such file system."""
    with suppress_codes(*_NOT_FOUND):
        return list(call()[member])
    return None


def _missing(field: str, channel: FileSystemConfig, region: str) -> Findings:
    other = "EFS" if channel.type == "FSxLustre" else "FSxLustre"
    problem = (
        f"{field}.id: there is no file system {channel.id} of type {channel.type} in {region};"
        f" use one in platform.region, or set type to {other} if it is of that type"
    )
    return Findings((problem,))


def _other_network(
    field: str, channel: FileSystemConfig, networks: set[Any], nodes: Subnets
) -> tuple[str, ...]:
    known = {str(network) for network in networks if network is not None}
    apart = sorted({str(row["VpcId"]) for row in nodes.values()} - known) if known else []
    if not apart:
        return ()
    return (
        (
            f"{field}.id: {channel.id} is in {' and '.join(sorted(known))}, but {_SUBNETS} are in"
            f" {' and '.join(apart)}; jobs can reach it only if the two are connected (peering or a"
            " transit gateway)"
        ),
    )


def _zones(subnets: Subnets) -> set[str]:
    return {str(row["AvailabilityZone"]) for row in subnets.values()}


def _job_subnets(context: RuleContext) -> Subnets:
    vpc = context.config.training.vpc
    assert vpc is not None
    return _subnets(context, vpc.subnets)


def _subnets(context: RuleContext, ids: tuple[str, ...]) -> Subnets:
    """Return the subnets' rows by ID.

    Return an empty dict if a subnet is unknown or the query is forbidden, which the subnet rule
    reports.
    """
    if not ids:
        return {}
    with suppress_codes(*MISSING, *NO_PERMISSION, *NO_SUCH_SERVICE):
        rows = context.client("ec2").describe_subnets(SubnetIds=list(ids))["Subnets"]
        return {str(row["SubnetId"]): row for row in rows}
    return {}
