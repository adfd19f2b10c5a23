"""Rules for spot, warm pools, network, keys and channels.

Source, unless a rule names its own: the API reference of CreateTrainingJob and the developer
guide's pages on managed spot training and warm pools. The SDKs check none of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nodesweep.configs.distribution import SmpV1, SmpV2
from nodesweep.configs.job import MAX_KEEP_ALIVE_SECONDS, FileSystemConfig, S3ChannelConfig
from nodesweep.configs.workload import SHIPPED_AMOUNTS, STEP_LIMITS, spelled
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.formats import pluralize
from nodesweep.scaling.rules.distribution import distribution_hyperparameters
from nodesweep.scaling.rules.distribution.option import Value
from nodesweep.scaling.rules.rule import Facts, advises, refuses

# -- problems --------------------------------------------------------------------------------------


@refuses
def spot_waits_as_long_as_it_runs(facts: Facts) -> Iterator[str]:
    """Refuse a MaxWaitTimeInSeconds below MaxRuntimeInSeconds, since it also covers running."""
    spot, runtime = facts.training.spot, facts.training.max_runtime_seconds
    if spot is not None and spot.max_wait_seconds < runtime:
        yield (
            f"training.spot.max_wait_seconds: {spot.max_wait_seconds} is less than "
            f"max_runtime_seconds {runtime}, but it covers waiting plus running; use {runtime} "
            "or more, or lower max_runtime_seconds"
        )


@refuses
def spot_has_no_warm_pool(facts: Facts) -> Iterator[str]:
    """Refuse a warm pool of spot nodes, which can be reclaimed."""
    if facts.training.spot is not None and facts.training.keep_alive_seconds:
        yield (
            f"training.keep_alive_seconds: {facts.training.keep_alive_seconds}, but spot nodes"
            " can't be kept in a warm pool; leave out keep_alive_seconds or spot"
        )


@refuses
def resources_are_of_the_run(facts: Facts) -> Iterator[str]:
    """Refuse a training plan or MLflow resource in a different region or account."""
    training, platform = facts.training, facts.config.platform
    own, mlflow = platform.account_id, training.mlflow
    for field, arn in (
        ("training.training_plan_arn", training.training_plan_arn),
        ("training.mlflow.resource_arn", None if mlflow is None else mlflow.resource_arn),
    ):
        if arn is None:
            continue
        _, _, _, region, account, _ = arn.split(":", 5)
        if region != platform.region:
            yield (
                f"{field}: it is in {region}, but platform.region is {platform.region}; use one "
                f"in {platform.region}, or run the sweep in {region}"
            )
        if account != own:
            yield (
                f"{field}: it belongs to account {account}, but platform.role_arn belongs to "
                f"{own}; use one of account {own}, which runs the jobs"
            )


ULTRA_SERVER_NODES = 18
"""Instances of the largest UltraServer, p6e-gb200x72: 72 GPUs, 4 per ml.p6e-gb200.36xlarge."""


@refuses
def placement_is_on_an_ultra_server(facts: Facts) -> Iterator[str]:
    """Refuse placement of nodes that are not part of an UltraServer, or do not fit on one."""
    placement, name = facts.training.placement, facts.instance.instance_type
    if placement is None:
        return
    if not name.startswith("ml.p6e-gb200."):
        yield (
            f"training.placement: only applies to UltraServers, but {name} is not part of one; "
            "leave it out, or use ml.p6e-gb200.36xlarge"
        )
    elif placement.ultra_server_id is not None and facts.max_nodes > ULTRA_SERVER_NODES:
        yield (
            f"training.placement.ultra_server_id: the largest job has {facts.max_nodes} nodes, "
            f"but an UltraServer has at most {ULTRA_SERVER_NODES}; leave out the ID, or the larger "
            "node counts"
        )


@refuses
def training_plan_is_not_spot(facts: Facts) -> Iterator[str]:
    """Refuse spot with a plan, whose instances are reserved and paid for."""
    if facts.training.training_plan_arn is not None and facts.training.spot is not None:
        yield (
            "training.training_plan_arn: a plan's instances are reserved, but spot instances are "
            "not; leave out spot or the plan"
        )


@refuses
def file_systems_are_in_a_vpc(facts: Facts) -> Iterator[str]:
    """Refuse a file system without a VPC: it is reachable only through one."""
    if facts.training.vpc is None:
        yield from (
            f"training.extra_channels.{name}: {channel.type} {channel.id} is reachable only "
            "through a VPC; set training.vpc to the file system's subnet and a security group "
            "that lets the nodes reach it"
            for name, channel in facts.training.extra_channels.items()
            if isinstance(channel, FileSystemConfig)
        )


@refuses
def volume_key_has_a_volume(facts: Facts) -> Iterator[str]:
    """Refuse a VolumeKmsKeyId for an instance store, as the service does.

    The hardware encrypts these disks.
    """
    if facts.training.volume_kms_key_id is not None and facts.instance.instance_store:
        yield (
            f"training.volume_kms_key_id: {facts.instance.instance_type} trains on its own NVMe "
            "disks, which are encrypted in hardware and for which SageMaker accepts no key; "
            "leave it out"
        )


@refuses
def channels_have_one_name(facts: Facts) -> list[str]:
    """Refuse channel names that map to the same SM_CHANNEL_<NAME>, which is in upper case."""
    dataset = facts.config.dataset
    own = [dataset.channel] if dataset is not None and dataset.channel else []
    counts = Counter(name.upper() for name in (*own, *facts.training.extra_channels))
    return [
        f"training.extra_channels: {count} channels (including dataset.channel) become "
        f"SM_CHANNEL_{name}; rename one"
        for name, count in counts.items()
        if count > 1
    ]


@refuses
def shipped_program_reads_files(facts: Facts) -> list[str]:
    """Refuse anything but the Parquet and CSV files that the program in infra/image reads.

    In Pipe mode, the channel's folder contains no files.
    """
    dataset = facts.config.dataset
    if not facts.ships_program:
        return []
    if dataset is None or not dataset.is_table:
        return [
            f"dataset{' is none' if dataset is None else '.format is files'}, but the shipped "
            "program trains on tables; use a dataset of format parquet or csv, or bring your own "
            "script with training.source_dir"
        ]
    if dataset.input_mode != "Pipe":
        return []
    return [
        "dataset.input_mode: Pipe streams the data, but the shipped training program reads "
        "files; use FastFile, which starts just as early, or File"
    ]


@refuses
def shipped_program_has_one_amount(facts: Facts) -> Iterator[str]:
    """Refuse hyperparameters that set the amount of work if a training field does so, too."""
    training = facts.training
    if not facts.ships_program or training.amount is None:
        return
    field, amount = training.amount
    for name, value in training.hyperparameters.items():
        if spelled(name) in SHIPPED_AMOUNTS:
            yield (
                f"training.hyperparameters: {name} ({value}) sets the amount of work, and so "
                f"does training.{field} ({amount}); leave out one of them, both in the config "
                "and in the overrides of the run"
            )


@refuses
def shipped_program_splits_no_model(facts: Facts) -> list[str]:
    """Refuse model parallelism that the shipped program does not implement.

    It shards states under SMP v2, but supports neither tensor, context nor expert parallelism, nor
    SMP v1.
    """
    chosen = facts.training.distribution
    if not facts.ships_program:
        return []
    if isinstance(chosen, SmpV1):
        return [
            "training.distribution.kind: the shipped training program does not support smp_v1; "
            "bring your own with training.source_dir or image.uri, or use kind smp_v2"
        ]
    degrees = ("tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree")
    return [
        f"training.distribution.{name}: {getattr(chosen, name)}, but the shipped training "
        "program only shards states and would fail on this argument; leave it out, or bring "
        "your own program with training.source_dir"
        for name in degrees
        if isinstance(chosen, SmpV2) and (getattr(chosen, name) or 1) > 1
    ]


@refuses
def fallbacks_have_as_many_accelerators(facts: Facts) -> Iterator[str]:
    """Refuse fallbacks on which a node would run a different number of ranks."""
    own, planned = facts.instance.instance_type, facts.instance.devices
    for name in facts.training.instance_fallbacks:
        devices = facts.config.node_type(name).devices
        if devices != planned:
            yield (
                f"training.instance_fallbacks: {name} has {_accelerators(devices)}, but {own} has "
                f"{_accelerators(planned)}, so the number of processes would differ; use types "
                "with the same number, or compare both with sweep.instance_types"
            )


@refuses
def fallbacks_are_launched_alike(facts: Facts) -> Iterator[str]:
    """Refuse fallbacks whose launch settings differ from those of the first choice.

    The first job's request has one set of hyperparameters for all of its types, and the request of
    every other job has those of the type that the first one got.
    """
    own = facts.instance.instance_type
    sent = _launch_settings(facts, own)
    for name in facts.training.instance_fallbacks:
        other = _launch_settings(facts, name)
        differing = sorted(key for key in sent if sent[key] != other[key])
        if differing:
            quoted = "; ".join(
                f"{key} {other[key]!r} instead of {sent[key]!r}" for key in differing
            )
            yield (
                f"training.instance_fallbacks: {name} needs different launch settings than {own} "
                f"({quoted}). The first job gets those of {own}, whichever type it runs on, so it "
                "could be launched differently from the other jobs; use types with the same kind "
                "of Elastic Fabric Adapter, set training.distribution.efa_flags: false, or compare "
                "both with sweep.instance_types"
            )


def _launch_settings(facts: Facts, instance_type: str) -> dict[str, Value]:
    """Return the launcher's hyperparameters on this type, except for the type's own name."""
    launch = distribution_hyperparameters(facts.distribution, facts.config.node_type(instance_type))
    return {key: value for key, value in launch.items() if value != instance_type}


def _accelerators(devices: int | None) -> str:
    unknown = "an unknown number of accelerators"
    return unknown if devices is None else pluralize(devices, "accelerator")


# -- hints -----------------------------------------------------------------------------------------


@advises
def training_plan_is_paid_upfront(facts: Facts) -> Iterator[str]:
    """Explain the prices under a plan, which is billed by an upfront fee."""
    if facts.training.training_plan_arn is not None:
        yield (
            "training.training_plan_arn: the plan's upfront fee pays for its instances; every "
            "cost here and in the report is what the same node-hours cost on demand"
        )


@advises
def jobs_may_share_an_ultra_server(facts: Facts) -> Iterator[str]:
    """Warn that jobs on one UltraServer can slow each other down."""
    placement = facts.training.placement
    if placement is not None and placement.share_ultra_servers:
        yield (
            "training.placement.share_ultra_servers: jobs on one UltraServer share its network, "
            "so times also depend on the neighbors; leave it out for a benchmark"
        )


@advises
def role_may_use_mlflow(facts: Facts) -> Iterator[str]:
    """Explain that the role's permissions on the MLflow resource are not checked."""
    if facts.training.mlflow is not None:
        yield (
            "training.mlflow: the preflight does not check that platform.role_arn may use "
            f"{facts.training.mlflow.resource_arn} (the sagemaker-mlflow actions)"
        )


@advises
def spot_resumes_from_checkpoints(facts: Facts) -> Iterator[str]:
    """Recommend checkpoints for spot, so that an interrupted job can resume."""
    if facts.training.spot is not None and facts.training.checkpoints is None:
        yield (
            "training.checkpoints: not set, so a spot job that is interrupted restarts from its "
            "first step; set it if the program can resume"
        )


@advises
def volume_key_is_checked(facts: Facts) -> Iterator[str]:
    """Warn that the volume key cannot be checked if the instance store is unknown."""
    if facts.training.volume_kms_key_id is not None and facts.instance.instance_store is None:
        yield (
            f"training.volume_kms_key_id: it is unknown whether {facts.instance.instance_type} "
            "trains on its own disks; if so, SageMaker refuses the key"
        )


@advises
def retries_are_in_one_clock(facts: Facts) -> list[str]:
    """Explain that RetryStrategy's attempts share one job's clocks and limits.

    RetryStrategy retries within one job, and only after InternalServerError.
    """
    attempts, spot = facts.training.retry_attempts, facts.training.spot
    if attempts is None:
        return []
    limit = (
        "max_runtime_seconds and spot.max_wait_seconds cover"
        if spot
        else "max_runtime_seconds covers"
    )
    return [
        f"training.retry_attempts: up to {attempts} retries happen inside one job, whose clocks "
        f"then include every start, and {limit} all of them together; sweep.max_attempts starts "
        "a new job with its own clocks"
    ]


@advises
def warm_pool_is_reused(facts: Facts) -> list[str]:
    """Warn about a warm pool that may go unused.

    A pool serves the next job with the same instance count (and type, role, VPC and volume), and is
    billed while it waits.
    """
    keep, runtime = facts.training.keep_alive_seconds, facts.training.max_runtime_seconds
    if not keep:
        return []
    # Arms on the same type share their pools; jobs on other types only delay the next one.
    sharing = facts.points_of_type or facts.plan.points
    in_order = facts.points_of_all_arms or facts.plan.points
    order = [point.nodes if point in sharing else None for point in in_order]
    if facts.config.sweep.most_repeats == 1 and len({point.nodes for point in sharing}) == len(
        sharing
    ):
        return [
            "training.keep_alive_seconds: a warm pool serves jobs of the same node count only, "
            "and each node count occurs once, so nothing is reused, and every job's nodes are "
            f"billed up to {keep} s longer; leave it out, or raise sweep.repeats"
        ]
    between = _most_jobs_between(order)
    if between * runtime <= keep:
        return []
    jobs = "1 job runs" if between == 1 else f"{between} jobs run"
    longer = "keep it for longer, or " if between * runtime <= MAX_KEEP_ALIVE_SECONDS else ""
    return [
        "training.keep_alive_seconds: a warm pool serves jobs of the same node count only. Up "
        f"to {jobs} between two of them, each for up to {runtime} s, so a pool kept for {keep} s "
        f"may expire unused and still be billed; {longer}measure one node count"
    ]


def _most_jobs_between(node_order: Sequence[int | None]) -> int:
    """Return the maximum number of jobs between two consecutive jobs of one node count.

    Jobs before the first and after the last job at a node count do not matter. None stands for a
    job that cannot use the pools.
    """
    last: dict[int, int] = {}
    most = 0
    for index, nodes in enumerate(node_order):
        if nodes is not None:
            most = max(most, index - last.get(nodes, index - 1) - 1)
            last[nodes] = index
    return most


@advises
def encryption_slows(facts: Facts) -> Iterator[str]:
    """Warn that encryption can slow down training, more so with more nodes.

    Source: API reference of CreateTrainingJob.
    """
    if facts.training.encrypt_inter_container_traffic and facts.max_nodes != 1:
        yield (
            "training.encrypt_inter_container_traffic: encryption slows down gradient exchange, "
            "so the curve shows encrypted training; do not compare it with an unencrypted "
            "one"
        )


@advises
def own_program_ends_itself(facts: Facts) -> Iterator[str]:
    """Explain what the design and an amount of work require of the user's training script."""
    if facts.ships_program:
        return
    yield from design_of(facts.config.sweep).program_hints(facts)
    if facts.training.amount is not None:
        field, amount = facts.training.amount
        yield (
            f"training.{field} is {amount}: your program has to end by itself and to report its "
            "train time, as the helper does (docs/own-code.md, 'The helper'), because its steps "
            "are not observed; otherwise, leave it out"
        )


@advises
def step_limit_is_intended(facts: Facts) -> Iterator[str]:
    """Warn about a step limit left over from a trial, which shortens every run."""
    for name, value in facts.training.hyperparameters.items():
        if spelled(name) in STEP_LIMITS and not str(value).startswith(("-", "0")):
            yield (
                f"training.hyperparameters.{name} is {value}: if it ends training, T covers only "
                "that many steps. Remove it if left over from a trial; sweep.design: probe "
                "projects the full run"
            )


@advises
def own_program_reads_a_stream(facts: Facts) -> list[str]:
    """Explain that Pipe mode provides a FIFO per epoch instead of files."""
    dataset = facts.config.dataset
    modes = {}
    if dataset is not None and not facts.ships_program:
        modes[dataset.channel or "<folder>"] = ("dataset", dataset.input_mode)
    modes |= {
        name: (f"training.extra_channels.{name}", channel.input_mode)
        for name, channel in facts.training.extra_channels.items()
        if isinstance(channel, S3ChannelConfig)
    }
    return [
        f"{section}.input_mode: Pipe gives the program /opt/ml/input/data/{name}_<epoch>, a "
        "stream that is read once, but no files; FastFile starts just as early and provides "
        "files"
        for name, (section, mode) in modes.items()
        if mode == "Pipe"
    ]
