"""Offline rules: what would make a job fail, hang or measure something else,
said before anything is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from nodesweep.configs.distribution import SmpV1, SmpV2, TorchDistributed
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

# MCA parameters that sagemaker-training 5.1.4 gives to mpirun itself (mpi.py, smdataparallel.py).
_RUNNER_MCA = frozenset(
    {"btl_tcp_if_include", "oob_tcp_if_include", "plm_rsh_no_tree_spawn", "pml", "btl",
     "orte_abort_on_non_zero_status", "btl_vader_single_copy_mechanism"}
)  # fmt: skip
_SMDDP_MCA = _RUNNER_MCA | {"plm_rsh_num_concurrent"}
_FIELD = "training.distribution"


# -- instances -------------------------------------------------------------------------------------


def only_on(types: tuple[str, ...], source: str) -> Judge[Facts]:
    """The library runs on these instance types alone.
    Emulated nodes pass: there the launch path is rehearsed.
    """

    @refuses
    def rule(facts: Facts) -> Iterator[str]:
        instance_type = facts.instance.instance_type
        if not facts.instance.emulated and instance_type not in types:
            yield (
                f"training.instance_type: {instance_type} has no {facts.distribution.kind};"
                f" {source} names {', '.join(types)}; use one of them, or kind torch_distributed"
            )

    return rule


def allgather_on(types: tuple[str, ...]) -> Judge[Facts]:
    """SMDDP's AllGather is for these instance types alone; the SDK takes any under
    torch_distributed.
    """

    @refuses
    def rule(facts: Facts) -> Iterator[str]:
        instance_type = facts.instance.instance_type
        if with_smddp(facts) and not facts.instance.emulated and instance_type not in types:
            yield (
                f"{_FIELD}.smddp: {instance_type} has no AllGather of SMDDP; AWS's list names "
                f"{', '.join(types)}; use one of them, or leave smddp out"
            )

    return rule


def with_smddp(facts: Facts) -> bool:
    """Whether torchrun starts a program that takes SMDDP's collectives."""
    return isinstance(facts.distribution, TorchDistributed) and facts.distribution.smddp


def where(asked: Callable[[Facts], bool], rule: Judge[Facts]) -> Judge[Facts]:
    """The rule, for the jobs that ask for what it looks at."""
    return lambda facts: rule(facts) if asked(facts) else Findings()


@refuses
def only_on_trainium(facts: Facts) -> Iterator[str]:
    """PyTorch/XLA finds NeuronCores on Trn instances alone."""
    if not facts.instance.emulated and not facts.instance.family.startswith("trn"):
        yield (
            f"training.instance_type: {facts.instance.instance_type} has no NeuronCores; kind "
            "trainium wants ml.trn1.*; use one, or kind torch_distributed"
        )


@refuses
def not_on_trainium(facts: Facts) -> Iterator[str]:
    """On Trn instances the SDK takes torch_distributed alone
    (fw_utils.validate_distribution_for_instance_type).
    """
    if facts.instance.family.startswith("trn"):
        yield (
            f"{_FIELD}.kind: {facts.distribution.kind} does not start on "
            f"{facts.instance.instance_type}; Trainium takes trainium or torch_distributed"
        )


@refuses
def processes_fit(facts: Facts) -> Iterator[str]:
    """At most one process per accelerator (AWS developer guide); the SDK takes any number."""
    devices = facts.instance.devices
    if devices and facts.processes_per_node > devices:
        yield (
            f"{_FIELD}.processes_per_node: {facts.processes_per_node} is more than the {devices}"
            f" accelerators the framework sees on {facts.instance.instance_type};"
            f" use at most {devices}"
        )


@refuses
def processes_are_known(facts: Facts) -> list[str]:
    """A launcher starts one process per device where it is not told how many,
    so one of the two must be known.
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
        f"{_FIELD}.processes_per_node: the catalogue does not know how many devices the framework"
        f" sees on {facts.instance.instance_type}, so the world size is unknown; {remedy}, or use"
        " another instance type"
    ]


# -- mpirun ----------------------------------------------------------------------------------------


@refuses
def mca_given_once(facts: Facts) -> Iterator[str]:
    """Open MPI ends where an MCA parameter stands twice on its command line,
    whatever the values.
    """
    taken = _SMDDP_MCA if facts.distribution.kind in ("smddp", "pytorchddp") else _RUNNER_MCA
    counts = Counter(_mca_names(facts.custom_mpi_options))
    yield from (
        f"{_FIELD}.custom_mpi_options: MCA parameter {name} is set by the SageMaker toolkit"
        " already, and mpirun refuses one that is listed twice; leave it out"
        for name in counts
        if name in taken
    )
    yield from (
        f"{_FIELD}.custom_mpi_options: MCA parameter {name} stands more than once, which mpirun"
        " refuses; keep one"
        for name, count in counts.items()
        if count > 1 and name not in taken
    )


def _mca_names(options: list[str]) -> Iterator[str]:
    for option, value in pairwise(options):
        if option in ("-mca", "--mca", "-gmca", "--gmca"):
            yield value


@refuses
def options_without_quotes(facts: Facts) -> Iterator[str]:
    """The toolkit splits the options at white space, so a quote reaches mpirun as a character."""
    quoted = [option for option in facts.custom_mpi_options if "'" in option or '"' in option]
    if quoted:
        yield (
            f"{_FIELD}.custom_mpi_options: {quoted[0]} holds a quote, which the toolkit hands on as"
            " part of the value; write values without white space and without quotes"
        )


@refuses
def no_rdma_where_none_is(facts: Facts) -> list[str]:
    """libfabric aborts a process that demands RDMA read of an adapter without it."""
    asked = (
        f"{DEVICE_RDMA}=1" in facts.custom_mpi_options
        or facts.training.environment.get(DEVICE_RDMA) == "1"
    )
    if not asked or not facts.instance.efa or has_device_rdma(facts.instance) is not False:
        return []
    where = (
        f"{_FIELD}.custom_mpi_options"
        if f"{DEVICE_RDMA}=1" in facts.custom_mpi_options
        else "training.environment"
    )
    return [
        f"{where}: {DEVICE_RDMA}=1, but the adapter of {facts.instance.instance_type} has no RDMA"
        " read, and libfabric aborts every rank; leave it out"
    ]


# -- program ---------------------------------------------------------------------------------------


@refuses
def python_program(facts: Facts) -> Iterator[str]:
    """torchrun starts Python files alone; the toolkit refuses anything else once the
    nodes are running.
    """
    if not facts.training.entry_point.endswith(".py"):
        yield (
            f"training.entry_point: {facts.training.entry_point} is no .py file, and torchrun"
            " starts nothing else; name a Python file, or have it started as it is, once on every"
            " node, by training.distribution: {kind: none} (docs/shell-and-binaries.md)"
        )


@refuses
def no_model_parallel_hyperparameter(facts: Facts) -> Iterator[str]:
    """`mp_parameters` turns model parallelism on in the toolkit,
    beside whatever kind was chosen.
    """
    if "mp_parameters" in facts.training.hyperparameters:
        yield (
            "training.hyperparameters: 'mp_parameters' turns on model parallelism, which goes "
            "with no other distribution; use kind smp_v1 or smp_v2 (kind is "
            f"{facts.distribution.kind})"
        )


# -- model parallelism -----------------------------------------------------------------------------


@refuses
def partitions_fill_the_job(facts: Facts) -> Iterator[str]:
    """partitions x data-parallel degree = processes (AWS developer guide);
    several replicas need DDP.
    """
    config = facts.distribution
    assert isinstance(config, SmpV1)
    tensor, sharded = config.tensor_parallel_degree or 1, config.sharded_data_parallel_degree or 1
    parts = config.partitions * tensor
    text = f"{config.partitions} partitions" + (f" x tensor degree {tensor}" if tensor > 1 else "")
    for nodes, world in _worlds(facts):
        if world % parts:
            yield (
                f"{_FIELD}.partitions: {text} do not divide the {world} processes of {nodes} nodes"
                f" x {facts.processes_per_node}; partitions x data-parallel degree must be the"
                " number of processes"
            )
        elif world // parts % sharded:
            yield (
                f"{_FIELD}.sharded_data_parallel_degree: {sharded} does not divide the"
                f" {world // parts} replicas that {text} leave of {world} processes; use a divisor"
            )
    if max(world for _, world in _worlds(facts)) > config.partitions and not (
        config.ddp or config.horovod
    ):
        yield (
            f"{_FIELD}.ddp: more processes than partitions are several replicas of the model, whose"
            " gradients are not averaged without it; set ddp: true"
        )


@refuses
def microbatches_divide_the_batch(facts: Facts) -> Iterator[str]:
    """The per-replica batch is cut into micro-batches of one size."""
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
                f"{_FIELD}.microbatches: {pieces} do not divide the per-replica batch of"
                f" {batch.size // shares} on {nodes} nodes;"
                " change training.batch.size or microbatches"
            )


@refuses
def degrees_fill_the_job(facts: Facts) -> Iterator[str]:
    """Every degree is at most the world size, and groups of one size fill it (SMP v2 reference)."""
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
            f"{_FIELD}: {name} is {size}, which does not divide the {world} processes of {nodes}"
            f" nodes x {facts.processes_per_node}; choose degrees that do"
            for name, size in groups.items()
            if world % size
        )
    if shard and context > shard:
        yield (
            f"{_FIELD}.context_parallel_degree: {context} is more"
            f" than hybrid_shard_degree {shard}; at most that"
        )


def _worlds(facts: Facts) -> list[tuple[int, int]]:
    """(nodes, processes of the whole job) of every point."""
    return [(nodes, nodes * facts.processes_per_node) for nodes in facts.node_counts]


# -- images ----------------------------------------------------------------------------------------

ImageTest = Callable[[ImageFacts], bool]


def image_is(fits: ImageTest, needs: str) -> Judge[Facts]:
    """The AWS container that runs as it is must fit;
    an unknown image and one that was built upon pass.
    """

    @refuses
    def rule(facts: Facts) -> Iterator[str]:
        image = facts.image
        if image is not None and not image.extended and not fits(image):
            yield (
                f"{image.field}: {image.uri} is {image.repository} {image.version_text} for"
                f" {image.device}; kind {facts.distribution.kind} needs {needs}; use such an image,"
                " or another kind"
            )

    return rule


def base_is(fits: ImageTest, needs: str) -> Judge[Facts]:
    """The hint beside `image_is` where the container was built upon:
    what was added is not known here.
    """

    @advises
    def rule(facts: Facts) -> Iterator[str]:
        image = facts.image
        if image is not None and image.extended and not fits(image):
            yield (
                f"image: {image.uri} has nothing for kind {facts.distribution.kind}, which needs"
                f" {needs}; make sure that what is built on it does"
            )

    return rule


def ranks_come_from_smddprun(fits: ImageTest) -> Judge[Facts]:
    """pytorchddp's program finds RANK and WORLD_SIZE set where smddprun is,
    which is part of SMDDP.
    """

    @advises
    def rule(facts: Facts) -> Iterator[str]:
        if facts.image is not None and not fits(facts.image):
            yield (
                f"image: {facts.image.uri} has no SMDDP, so no smddprun sets RANK, WORLD_SIZE and "
                f"LOCAL_RANK under kind {facts.distribution.kind}, and the SDK v2 refuses such a "
                "version; the program must take them from Open MPI (OMPI_COMM_WORLD_RANK, _SIZE "
                "and _LOCAL_RANK), as the shipped one does"
            )

    return rule


@advises
def mpi4py_is_there(facts: Facts) -> list[str]:
    """Every rank is `python -m mpi4py`; AWS's CUDA containers of PyTorch 2.11 and later lack it
    (their lock files).
    """
    image = facts.image
    if image is None:
        return [
            f"image: kind {facts.distribution.kind} starts `python -m mpi4py` through mpirun over"
            " SSH; this image must hold mpi4py (or the code a requirements.txt with it), Open MPI"
            " 4 and an SSH server"
        ]
    if image.cuda is None or image.version < (2, 11):
        return []
    return [
        f"image: {image.uri} has no mpi4py, which the launcher of kind {facts.distribution.kind}"
        " starts; put mpi4py into the requirements.txt beside your code"
    ]


# -- hints -----------------------------------------------------------------------------------------


@advises
def efa_is_used(facts: Facts) -> list[str]:
    """Launchers turn EFA on for the instance types they know;
    elsewhere NCCL may fall back to TCP unnoticed.

    Without accelerators gloo carries the gradients, which has no libfabric.
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
        f"training.environment: {facts.instance.instance_type} has an Elastic Fabric Adapter that"
        f" nothing turns on under kind {facts.distribution.kind}; add {{{text}}}"
    ]


@advises
def adapter_is_there(facts: Facts) -> list[str]:
    """FI_PROVIDER=efa on an instance without an adapter: NCCL's OFI plugin finds no provider and
    says so in the log, and NCCL goes on with TCP sockets (NVIDIA/nccl#229; aws/aws-ofi-nccl#174
    shows the warnings on ml.p3.16xlarge).

    Under smddp and pytorchddp the toolkit sets it itself, whatever the instance type
    (sagemaker-training 5.1.4, smdataparallel.py). It is a hint, since jobs train all the same; a
    transport that demands libfabric would not.
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
        f"{field}: {' and '.join(found)}, but {facts.instance.instance_type} has no Elastic Fabric"
        f" Adapter; NCCL warns that it finds no provider and goes on with TCP; {remedy}"
        for field, found, remedy in places
        if found
    ]


@advises
def what_is_unknown(facts: Facts) -> Iterator[str]:
    """Facts that the catalogue does not hold and what is therefore not checked."""
    instance, given = facts.instance, getattr(facts.distribution, "processes_per_node", None)
    if instance.devices is None and given is not None:
        yield (
            f"{_FIELD}.processes_per_node: how many devices the framework sees on"
            f" {instance.instance_type} is unknown, so {given} is not held against it"
        )
    if instance.efa is None:
        yield (
            f"training.instance_type: whether {instance.instance_type} has an Elastic Fabric"
            " Adapter is unknown, so nothing turns one on, and settings for it are not checked"
        )


@advises
def launch_path_only(facts: Facts) -> Iterator[str]:
    """On an emulated node AWS's own libraries are missing."""
    if facts.instance.emulated:
        yield (
            f"{_FIELD}.kind: the library of {facts.distribution.kind} is on AWS only;"
            f" {facts.instance.instance_type} rehearses the launch, and its times are no"
            " measurement of it"
        )


@advises
def parameter_server_is_plain(facts: Facts) -> list[str]:
    """The PyTorch toolkit ignores the parameter-server flag."""
    return [
        f"{_FIELD}.kind: with PyTorch parameter_server starts no server and runs as kind none, one"
        " plain process per node; use torch_distributed for one process per accelerator"
    ]


@advises
def p3_is_slow_with_smddp(facts: Facts) -> Iterator[str]:
    """AWS's list of instance types no longer names p3.16xlarge, the SDK's does."""
    if facts.instance.family in ("p3", "p3dn"):
        yield (
            "training.instance_type: SMDDP is no longer optimised for"
            f" {facts.instance.instance_type} (AWS developer guide); expect NCCL's speed"
        )
