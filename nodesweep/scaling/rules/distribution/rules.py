"""Offline rules against jobs that would fail, hang or measure something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from nodesweep.configs.distribution import SmpV1, SmpV2, TorchDistributed
from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.rules.distribution.efa import (
    DEVICE_RDMA,
    PROVIDER,
    TOOLKIT_EFA_TYPES,
    efa_settings,
    has_device_rdma,
)
from nodesweep.scaling.rules.distribution.option import ranks_per_replica
from nodesweep.scaling.rules.images import ImageFacts
from nodesweep.scaling.rules.rule import Facts, Findings, Judge, advises, refuses

# MCA parameters that sagemaker-training 5.1.4 itself passes to mpirun (mpi.py, smdataparallel.py).
_RUNNER_MCA = frozenset(
    {"btl_tcp_if_include", "oob_tcp_if_include", "plm_rsh_no_tree_spawn", "pml", "btl",
     "orte_abort_on_non_zero_status", "btl_vader_single_copy_mechanism"}
)  # fmt: skip
_SMDDP_MCA = _RUNNER_MCA | {"plm_rsh_num_concurrent"}
_FIELD = "training.distribution"


# -- instances -------------------------------------------------------------------------------------


def only_on(types: tuple[str, ...], source: str) -> Judge[Facts]:
    """Make a rule that refuses instance types on which the library does not run.

    Emulated nodes pass, since they only rehearse the launch.
    """

    @refuses
    def rule(facts: Facts) -> Iterator[str]:
        instance_type = facts.instance.instance_type
        if not facts.instance.emulated and instance_type not in types:
            yield (
                f"training.instance_type: {instance_type} does not support "
                f"{facts.distribution.kind}; {source} has {', '.join(types)}; use one of them, "
                "or kind torch_distributed"
            )

    return rule


def allgather_on(types: tuple[str, ...]) -> Judge[Facts]:
    """Make a rule that refuses SMDDP's AllGather on other instance types.

    Under torch_distributed the SDK accepts any type.
    """

    @refuses
    def rule(facts: Facts) -> Iterator[str]:
        instance_type = facts.instance.instance_type
        if with_smddp(facts) and not facts.instance.emulated and instance_type not in types:
            yield (
                f"{_FIELD}.smddp: {instance_type} does not support SMDDP's AllGather; AWS's "
                f"list has {', '.join(types)}; use one of them, or leave smddp out"
            )

    return rule


def with_smddp(facts: Facts) -> bool:
    """Return True if torchrun starts a program that uses SMDDP's collectives."""
    return isinstance(facts.distribution, TorchDistributed) and facts.distribution.smddp


def only_if(asked: Callable[[Facts], bool], rule: Judge[Facts]) -> Judge[Facts]:
    """Restrict a rule to jobs for which `asked` is true."""
    return lambda facts: rule(facts) if asked(facts) else Findings()


@refuses
def only_on_trainium(facts: Facts) -> Iterator[str]:
    """Refuse other instances: only Trn instances have the NeuronCores that PyTorch/XLA needs."""
    if not facts.instance.emulated and not facts.instance.family.startswith("trn"):
        yield (
            f"training.instance_type: {facts.instance.instance_type} has no NeuronCores, which "
            "kind trainium needs; use an ml.trn1.* or ml.trn1n.* instance, or set kind to "
            "torch_distributed"
        )


@refuses
def not_on_trainium(facts: Facts) -> Iterator[str]:
    """Refuse Trn instances, on which the SDK accepts only torch_distributed.

    Source: fw_utils.validate_distribution_for_instance_type.
    """
    if facts.instance.family.startswith("trn"):
        yield (
            f"{_FIELD}.kind: {facts.distribution.kind} does not start on "
            f"{facts.instance.instance_type}; Trainium supports kinds trainium and "
            "torch_distributed"
        )


@refuses
def processes_fit(facts: Facts) -> Iterator[str]:
    """Refuse more than one process per accelerator (AWS developer guide), which the SDK accepts."""
    devices = facts.instance.devices
    if devices and facts.processes_per_node > devices:
        yield (
            f"{_FIELD}.processes_per_node: {facts.processes_per_node} is more than the "
            f"{devices} accelerators that the framework sees on {facts.instance.instance_type}; "
            f"use at most {devices}"
        )


@refuses
def processes_are_known(facts: Facts) -> list[str]:
    """Refuse a launch whose number of processes is unknown.

    By default a launcher starts one process per device, so the number of processes or of devices
    must be known.
    """
    if (
        facts.instance.devices is not None
        or getattr(facts.distribution, "processes_per_node", None) is not None
    ):
        return []
    asked = "processes_per_node" in type(facts.distribution).model_fields
    remedy = (
        "set it"
        if asked
        else f"kind {facts.distribution.kind} has no such field: use kind torch_distributed"
    )
    return [
        f"{_FIELD}.processes_per_node: the number of devices that the framework sees on"
        f" {facts.instance.instance_type} is unknown, so the world size is unknown; {remedy}, or"
        " use another instance type"
    ]


# -- mpirun ----------------------------------------------------------------------------------------


@refuses
def mca_given_once(facts: Facts) -> Iterator[str]:
    """Refuse repeated MCA parameters: Open MPI exits on them, even if their values are equal."""
    taken = _SMDDP_MCA if facts.distribution.kind in ("smddp", "pytorchddp") else _RUNNER_MCA
    counts = Counter(_mca_names(facts.custom_mpi_options))
    yield from (
        f"{_FIELD}.custom_mpi_options: MCA parameter {name} is already set by the SageMaker "
        "toolkit, and mpirun refuses a parameter that is listed twice; leave it out"
        for name in counts
        if name in taken
    )
    yield from (
        f"{_FIELD}.custom_mpi_options: MCA parameter {name} is given more than once, which mpirun "
        "refuses; keep one"
        for name, count in counts.items()
        if count > 1 and name not in taken
    )


def _mca_names(options: list[str]) -> Iterator[str]:
    for option, value in pairwise(options):
        if option in ("-mca", "--mca", "-gmca", "--gmca"):
            yield value


@refuses
def options_without_quotes(facts: Facts) -> Iterator[str]:
    """Refuse quotes in the options: the toolkit splits them at white space and keeps the quotes."""
    quoted = [option for option in facts.custom_mpi_options if "'" in option or '"' in option]
    if quoted:
        yield (
            f"{_FIELD}.custom_mpi_options: {quoted[0]} contains a quote, which the toolkit passes "
            "on as part of the value; write values without whitespace and without quotes"
        )


@refuses
def rdma_is_supported(facts: Facts) -> list[str]:
    """Refuse RDMA read on an adapter that does not support it: libfabric would abort the ranks."""
    asked = (
        f"{DEVICE_RDMA}=1" in facts.custom_mpi_options
        or facts.training.environment.get(DEVICE_RDMA) == "1"
    )
    if not asked or not facts.instance.efa or has_device_rdma(facts.instance) is not False:
        return []
    field = (
        f"{_FIELD}.custom_mpi_options"
        if f"{DEVICE_RDMA}=1" in facts.custom_mpi_options
        else "training.environment"
    )
    return [
        f"{field}: {DEVICE_RDMA}=1, but the adapter of {facts.instance.instance_type} does"
        " not support RDMA read, so libfabric would abort every rank; remove it"
    ]


# -- program ---------------------------------------------------------------------------------------


@refuses
def python_program(facts: Facts) -> Iterator[str]:
    """Refuse anything but a Python file under torchrun; the toolkit would do so on the nodes."""
    if not facts.training.entry_point.endswith(".py"):
        yield (
            f"training.entry_point: {facts.training.entry_point} is not a .py file, and "
            "torchrun starts nothing else; choose a Python file, or have it started unmodified, "
            "once per node, with training.distribution: {kind: none} "
            "(docs/shell-and-binaries.md)"
        )


@refuses
def no_model_parallel_hyperparameter(facts: Facts) -> Iterator[str]:
    """Refuse `mp_parameters`, with which the toolkit enables model parallelism under any kind."""
    if "mp_parameters" in facts.training.hyperparameters:
        yield (
            "training.hyperparameters: 'mp_parameters' turns on model parallelism under any kind; "
            "remove it, and set the fields of training.distribution with kind smp_v1 or smp_v2 "
            f"instead (kind is {facts.distribution.kind})"
        )


# -- model parallelism -----------------------------------------------------------------------------


@refuses
def partitions_fill_the_job(facts: Facts) -> Iterator[str]:
    """Refuse partitions and degrees that do not divide the processes evenly.

    partitions x data-parallel degree = processes (AWS developer guide); several replicas need DDP.
    """
    config = facts.distribution
    assert isinstance(config, SmpV1)
    tensor, sharded = config.tensor_parallel_degree or 1, config.sharded_data_parallel_degree or 1
    parts = config.partitions * tensor
    text = f"{config.partitions} partitions" + (f" x tensor degree {tensor}" if tensor > 1 else "")
    for nodes, world in _worlds(facts):
        if world % parts:
            yield (
                f"{_FIELD}.partitions: {text} do not divide the {world} processes"
                f" ({nodes_text(nodes)}, {facts.processes_per_node} per node); partitions x"
                " data-parallel degree must equal the number of processes"
            )
        elif world // parts % sharded:
            yield (
                f"{_FIELD}.sharded_data_parallel_degree: {sharded} does not divide the "
                f"{world // parts} replicas ({world} processes over {text}); use a divisor"
            )
    if max(world for _, world in _worlds(facts)) > config.partitions and not (
        config.ddp or config.horovod
    ):
        yield (
            f"{_FIELD}.ddp: with more processes than partitions, there are several replicas of "
            "the model, and without ddp their gradients are not averaged; set ddp: true"
        )


@refuses
def microbatches_divide_the_batch(facts: Facts) -> Iterator[str]:
    """Refuse a per-replica batch that does not divide into micro-batches of equal size."""
    config, batch = facts.distribution, facts.training.batch
    assert isinstance(config, SmpV1)
    pieces, shared = config.microbatches or 1, ranks_per_replica(config)
    if batch is None:
        return
    for nodes, world in _worlds(facts):
        shares = (
            1
            if batch.policy == "fixed_per_replica"
            else world // shared * batch.accumulate_grad_batches
        )
        if shares and batch.size % shares == 0 and batch.size // shares % pieces:
            yield (
                f"{_FIELD}.microbatches: {pieces} does not divide the per-replica batch of"
                f" {batch.size // shares} on {nodes_text(nodes)};"
                " change training.batch.size or microbatches"
            )


@refuses
def degrees_fill_the_job(facts: Facts) -> Iterator[str]:
    """Refuse degrees whose products do not divide the world size (SMP v2 reference)."""
    config = facts.distribution
    assert isinstance(config, SmpV2)
    shard, context = config.hybrid_shard_degree, config.context_parallel_degree or 1
    tensor = config.tensor_parallel_degree or 1
    for nodes, world in _worlds(facts):
        groups = {
            "tensor_parallel_degree x max(1, hybrid_shard_degree)": tensor * max(1, shard),
            "tensor_parallel_degree x context_parallel_degree": tensor * context,
            "expert_parallel_degree": config.expert_parallel_degree or 1,
        }
        yield from (
            f"{_FIELD}: {name} is {size}, which does not divide the {world} processes of"
            f" {nodes_text(nodes)} x {facts.processes_per_node}; choose degrees that do"
            for name, size in groups.items()
            if world % size
        )
    if shard and context > shard:
        yield (
            f"{_FIELD}.context_parallel_degree: {context} is more than hybrid_shard_degree, "
            f"{shard}; use at most {shard}"
        )


def _worlds(facts: Facts) -> list[tuple[int, int]]:
    """Return (nodes, processes of the job) for every node count."""
    return [(nodes, nodes * facts.processes_per_node) for nodes in facts.node_counts]


# -- images ----------------------------------------------------------------------------------------

ImageTest = Callable[[ImageFacts], bool]


def image_is(fits: ImageTest, needs: str) -> Judge[Facts]:
    """Make a rule that refuses an unsuitable AWS container that runs unmodified.

    Unknown images pass, and so do containers that the image is built on.
    """

    @refuses
    def rule(facts: Facts) -> Iterator[str]:
        image = facts.image
        if image is not None and not image.extended and not fits(image):
            yield (
                f"{image.field}: {image.uri} is {image.repository} {image.version_text} for"
                f" {image.device}, but kind {facts.distribution.kind} needs {needs}; use such an"
                " image, or another kind"
            )

    return rule


def base_is(fits: ImageTest, needs: str) -> Judge[Facts]:
    """Make a rule that warns about building on an unsuitable AWS container.

    It complements `image_is`. The added layers are unknown here.
    """

    @advises
    def rule(facts: Facts) -> Iterator[str]:
        image = facts.image
        if image is not None and image.extended and not fits(image):
            yield (
                f"image: {image.uri} does not suit kind {facts.distribution.kind}, which needs "
                f"{needs}; make sure that the image built on it adds what is missing"
            )

    return rule


def ranks_come_from_smddprun(fits: ImageTest) -> Judge[Facts]:
    """Make a rule that warns about a missing smddprun, which is part of SMDDP.

    Under pytorchddp it is smddprun that sets RANK and WORLD_SIZE.
    """

    @advises
    def rule(facts: Facts) -> Iterator[str]:
        if facts.image is not None and not fits(facts.image):
            yield (
                f"image: {facts.image.uri} has no SMDDP, so no smddprun sets RANK, WORLD_SIZE "
                f"and LOCAL_RANK under kind {facts.distribution.kind}, and SDK v2 refuses such "
                "a version; the program must take them from Open MPI (OMPI_COMM_WORLD_RANK, "
                "_SIZE and _LOCAL_RANK), as the shipped one does"
            )

    return rule


@advises
def mpi4py_is_there(facts: Facts) -> list[str]:
    """Warn if mpi4py is missing: every rank runs as `python -m mpi4py`.

    According to their lock files, AWS's CUDA containers of PyTorch 2.11 and later lack it.
    """
    image = facts.image
    if image is None:
        return [
            f"image: kind {facts.distribution.kind} starts `python -m mpi4py` through mpirun over "
            "SSH; this image must contain Open MPI 4, an SSH server and mpi4py (or your code a "
            "requirements.txt that lists mpi4py)"
        ]
    if image.cuda is None or image.version < (2, 11):
        return []
    return [
        f"image: {image.uri} has no mpi4py, which the launcher of kind {facts.distribution.kind} "
        "needs; add mpi4py to the requirements.txt next to your code"
    ]


# -- hints -----------------------------------------------------------------------------------------


@advises
def efa_is_used(facts: Facts) -> list[str]:
    """Warn about an adapter that nothing enables: NCCL may silently fall back to TCP.

    Launchers enable EFA for the instance types that they know. Without accelerators, the gradients
    are exchanged over gloo, which does not use libfabric.
    """
    if facts.instance.accelerators == 0:
        return []
    plain = facts.distribution.kind in ("none", "parameter_server")
    settings = efa_settings(facts.instance)
    launcher_knows = facts.instance.instance_type in TOOLKIT_EFA_TYPES and not plain
    given = {option.partition("=")[0] for option in facts.custom_mpi_options} | set(
        facts.training.environment
    )
    if (
        not settings
        or launcher_knows
        or PROVIDER in given
        or getattr(facts.distribution, "efa_flags", False)
    ):
        return []
    text = ", ".join(f'{name}: "{value}"' for name, value in settings.items())
    return [
        f"training.environment: {facts.instance.instance_type} has an Elastic Fabric "
        f"Adapter, but kind {facts.distribution.kind} does not enable it; add {{{text}}}"
    ]


@advises
def adapter_is_there(facts: Facts) -> list[str]:
    """Warn about EFA settings on an instance without an adapter.

    NCCL's OFI plugin then logs that it finds no provider, and NCCL continues with TCP sockets
    (NVIDIA/nccl#229; aws/aws-ofi-nccl#174 shows the warnings on ml.p3.16xlarge). Under smddp and
    pytorchddp the toolkit itself sets FI_PROVIDER=efa on any instance type (sagemaker-training
    5.1.4, smdataparallel.py). It is a hint because jobs still train, unless their transport
    requires libfabric.
    """
    if facts.instance.efa is not False or facts.instance.emulated:
        return []
    kind, settings = facts.distribution.kind, {f"{PROVIDER}=efa", f"{DEVICE_RDMA}=1"}
    environment = {f"{name}={value}" for name, value in facts.training.environment.items()}
    places = [
        (f"{_FIELD}.custom_mpi_options", sorted(settings.intersection(facts.custom_mpi_options)),
         "leave it out"),
        ("training.environment", sorted(settings & environment), "leave it out"),
        (f"{_FIELD}.kind", [f"{PROVIDER}=efa"] if kind in ("smddp", "pytorchddp") else [],
         f"SageMaker's toolkit sets it under {kind}; torch_distributed does not"),
    ]  # fmt: skip
    return [
        f"{field}: {' and '.join(found)}, but {facts.instance.instance_type} has no Elastic "
        f"Fabric Adapter; NCCL warns that it finds no provider and falls back to TCP; {remedy}"
        for field, found, remedy in places
        if found
    ]


@advises
def unknown_facts(facts: Facts) -> Iterator[str]:
    """Warn about facts missing from the catalogue, and the checks skipped as a result."""
    instance, given = facts.instance, getattr(facts.distribution, "processes_per_node", None)
    if instance.devices is None and given is not None:
        yield (
            f"{_FIELD}.processes_per_node: the number of devices that the framework sees on "
            f"{instance.instance_type} is unknown, so {given} is not checked against it"
        )
    if instance.efa is None and instance.is_aws:
        yield (
            f"training.instance_type: it is unknown whether {instance.instance_type} has an "
            "Elastic Fabric Adapter, so none is enabled, and settings for it are not checked"
        )


@advises
def launch_path_only(facts: Facts) -> Iterator[str]:
    """Warn that emulated nodes lack AWS's libraries."""
    if facts.instance.emulated:
        yield (
            f"{_FIELD}.kind: the library of {facts.distribution.kind} exists only on AWS; "
            f"{facts.instance.instance_type} rehearses the launch, and its times do not measure "
            "the library"
        )


@advises
def parameter_server_is_plain(facts: Facts) -> list[str]:
    """Warn that the PyTorch toolkit ignores the parameter-server flag."""
    return [
        f"{_FIELD}.kind: with PyTorch parameter_server starts no server and runs as kind none, one"
        " plain process per node; use torch_distributed for one process per accelerator"
    ]


@advises
def p3_is_slow_with_smddp(facts: Facts) -> Iterator[str]:
    """Warn about p3.16xlarge, which AWS no longer lists for SMDDP although the SDK does."""
    if facts.instance.family in ("p3", "p3dn"):
        yield (
            "training.instance_type: SMDDP is no longer optimized for "
            f"{facts.instance.instance_type} (AWS developer guide); expect NCCL's speed"
        )
