"""Offline rules: what would make a job fail, hang or measure something else, said before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from configs.distribution import SmpV1, SmpV2, TorchDistributed
from scaling.rules.distribution.efa import DEVICE_RDMA, PROVIDER, TOOLKIT_EFA_TYPES, efa_settings, has_device_rdma
from scaling.rules.distribution.images import ImageFacts
from scaling.rules.distribution.option import Job, Rule, ranks_per_replica

# MCA parameters that sagemaker-training 5.1.4 gives to mpirun itself (mpi.py, smdataparallel.py).
_RUNNER_MCA = frozenset(
    {"btl_tcp_if_include", "oob_tcp_if_include", "plm_rsh_no_tree_spawn", "pml", "btl",
     "orte_abort_on_non_zero_status", "btl_vader_single_copy_mechanism"}
)  # fmt: skip
_SMDDP_MCA = _RUNNER_MCA | {"plm_rsh_num_concurrent"}
_FIELD = "training.distribution"


# -- instances ---------------------------------------------------------------------------------------------------------


def only_on(types: tuple[str, ...], source: str) -> Rule:
    """The library runs on these instance types alone. Emulated nodes pass: there the launch path is rehearsed."""

    def rule(job: Job) -> list[str]:
        instance_type = job.instance.instance_type
        if job.instance.emulated or instance_type in types:
            return []
        return [
            f"training.instance_type: {instance_type} has no {job.distribution.kind}; {source} names "
            f"{', '.join(types)}; use one of them, or kind torch_distributed"
        ]

    return rule


def allgather_on(types: tuple[str, ...]) -> Rule:
    """SMDDP's AllGather is for these instance types alone; the SDK takes any under torch_distributed."""

    def rule(job: Job) -> list[str]:
        instance_type = job.instance.instance_type
        if not with_smddp(job) or job.instance.emulated or instance_type in types:
            return []
        return [
            f"{_FIELD}.smddp: {instance_type} has no AllGather of SMDDP; AWS's list names {', '.join(types)}; use one "
            "of them, or leave smddp out"
        ]

    return rule


def with_smddp(job: Job) -> bool:
    """Whether torchrun starts a program that takes SMDDP's collectives."""
    return isinstance(job.distribution, TorchDistributed) and job.distribution.smddp


def where(asked: Callable[[Job], bool], rule: Rule) -> Rule:
    """The rule, for the jobs that ask for what it looks at."""
    return lambda job: rule(job) if asked(job) else []


def only_on_trainium(job: Job) -> list[str]:
    """PyTorch/XLA finds NeuronCores on Trn instances alone."""
    if job.instance.emulated or job.instance.family.startswith("trn"):
        return []
    return [
        f"training.instance_type: {job.instance.instance_type} has no NeuronCores; kind trainium wants ml.trn1.*; "
        "use one, or kind torch_distributed"
    ]


def not_on_trainium(job: Job) -> list[str]:
    """On Trn instances the SDK takes torch_distributed alone (fw_utils.validate_distribution_for_instance_type)."""
    if not job.instance.family.startswith("trn"):
        return []
    return [
        f"{_FIELD}.kind: {job.distribution.kind} does not start on {job.instance.instance_type}; Trainium takes "
        "trainium or torch_distributed"
    ]


def processes_fit(job: Job) -> list[str]:
    """At most one process per accelerator (AWS developer guide); the SDK takes any number."""
    devices = job.instance.devices
    if not devices or job.processes_per_node <= devices:
        return []
    return [
        f"{_FIELD}.processes_per_node: {job.processes_per_node} is more than the {devices} accelerators the framework "
        f"sees on {job.instance.instance_type}; use at most {devices}"
    ]


def processes_are_known(job: Job) -> list[str]:
    """A launcher starts one process per device where it is not told how many, so one of the two must be known."""
    if job.instance.devices is not None or getattr(job.distribution, "processes_per_node", None) is not None:
        return []
    asked = "processes_per_node" in type(job.distribution).model_fields
    remedy = "set it" if asked else f"kind {job.distribution.kind} has no such field: use kind torch_distributed"
    return [
        f"{_FIELD}.processes_per_node: the catalogue does not know how many devices the framework sees on "
        f"{job.instance.instance_type}, so the world size is unknown; {remedy}, or use another instance type"
    ]


# -- mpirun ------------------------------------------------------------------------------------------------------------


def mca_given_once(job: Job) -> list[str]:
    """Open MPI ends where an MCA parameter stands twice on its command line, whatever the values."""
    taken = _SMDDP_MCA if job.distribution.kind in ("smddp", "pytorchddp") else _RUNNER_MCA
    counts = Counter(_mca_names(job.custom_mpi_options))
    by_toolkit = [name for name in counts if name in taken]
    twice = [name for name, count in counts.items() if count > 1 and name not in taken]
    problems = [
        f"{_FIELD}.custom_mpi_options: MCA parameter {name} is set by the SageMaker toolkit already, and mpirun "
        "refuses one that is listed twice; leave it out"
        for name in by_toolkit
    ]
    return problems + [
        f"{_FIELD}.custom_mpi_options: MCA parameter {name} stands more than once, which mpirun refuses; keep one"
        for name in twice
    ]


def _mca_names(options: list[str]) -> Iterator[str]:
    for option, value in pairwise(options):
        if option in ("-mca", "--mca", "-gmca", "--gmca"):
            yield value


def options_without_quotes(job: Job) -> list[str]:
    """The toolkit splits the options at white space, so a quote reaches mpirun as a character."""
    quoted = [option for option in job.custom_mpi_options if "'" in option or '"' in option]
    if not quoted:
        return []
    return [
        f"{_FIELD}.custom_mpi_options: {quoted[0]} holds a quote, which the toolkit hands on as part of the value; "
        "write values without white space and without quotes"
    ]


def no_rdma_where_none_is(job: Job) -> list[str]:
    """libfabric aborts a process that demands RDMA read of an adapter without it."""
    asked = f"{DEVICE_RDMA}=1" in job.custom_mpi_options or job.training.environment.get(DEVICE_RDMA) == "1"
    if not asked or not job.instance.efa or has_device_rdma(job.instance) is not False:
        return []
    where = f"{_FIELD}.custom_mpi_options" if f"{DEVICE_RDMA}=1" in job.custom_mpi_options else "training.environment"
    return [
        f"{where}: {DEVICE_RDMA}=1, but the adapter of {job.instance.instance_type} has no RDMA read, and libfabric "
        "aborts every rank; leave it out"
    ]


# -- program -----------------------------------------------------------------------------------------------------------


def python_program(job: Job) -> list[str]:
    """torchrun starts Python files alone; the toolkit refuses anything else once the nodes are running."""
    if job.training.entry_point.endswith(".py"):
        return []
    return [
        f"training.entry_point: {job.training.entry_point} is no .py file, and torchrun starts nothing else; "
        "name a Python file"
    ]


def no_model_parallel_hyperparameter(job: Job) -> list[str]:
    """`mp_parameters` turns model parallelism on in the toolkit, beside whatever kind was chosen."""
    if "mp_parameters" not in job.training.hyperparameters:
        return []
    return [
        "training.hyperparameters: 'mp_parameters' turns on model parallelism, which goes with no other distribution; "
        f"use kind smp_v1 or smp_v2 (kind is {job.distribution.kind})"
    ]


# -- model parallelism -------------------------------------------------------------------------------------------------


def partitions_fill_the_job(job: Job) -> list[str]:
    """partitions x data-parallel degree = processes (AWS developer guide); several replicas need DDP."""
    config = job.distribution
    assert isinstance(config, SmpV1)
    tensor, sharded = config.tensor_parallel_degree or 1, config.sharded_data_parallel_degree or 1
    parts = config.partitions * tensor
    text = f"{config.partitions} partitions" + (f" x tensor degree {tensor}" if tensor > 1 else "")
    problems = []
    for nodes, world in _worlds(job):
        if world % parts:
            problems.append(
                f"{_FIELD}.partitions: {text} do not divide the {world} processes of {nodes} nodes x "
                f"{job.processes_per_node}; partitions x data-parallel degree must be the number of processes"
            )
        elif world // parts % sharded:
            problems.append(
                f"{_FIELD}.sharded_data_parallel_degree: {sharded} does not divide the {world // parts} replicas that "
                f"{text} leave of {world} processes; use a divisor"
            )
    if max(world for _, world in _worlds(job)) > config.partitions and not (config.ddp or config.horovod):
        problems.append(
            f"{_FIELD}.ddp: more processes than partitions are several replicas of the model, whose gradients are not "
            "averaged without it; set ddp: true"
        )
    return problems


def microbatches_divide_the_batch(job: Job) -> list[str]:
    """The per-replica batch is cut into micro-batches of one size."""
    config, batch = job.distribution, job.training.batch
    assert isinstance(config, SmpV1)
    pieces, shared = config.microbatches or 1, ranks_per_replica(config)
    problems: list[str] = []
    if batch is None:
        return problems
    for nodes, world in _worlds(job):
        shares = 1 if batch.policy == "fixed_per_replica" else world // shared * batch.accumulate_grad_batches
        if shares and batch.size % shares == 0 and batch.size // shares % pieces:
            problems.append(
                f"{_FIELD}.microbatches: {pieces} do not divide the per-replica batch of {batch.size // shares} on "
                f"{nodes} nodes; change training.batch.size or microbatches"
            )
    return problems


def degrees_fill_the_job(job: Job) -> list[str]:
    """Every degree is at most the world size, and groups of one size fill it (SMP v2 reference)."""
    config = job.distribution
    assert isinstance(config, SmpV2)
    shard, context = config.hybrid_shard_degree, config.context_parallel_degree or 1
    tensor = config.tensor_parallel_degree or 1
    problems = []
    for nodes, world in _worlds(job):
        groups = {
            "tensor_parallel_degree x max(1, hybrid_shard_degree)": tensor * max(1, shard),
            "tensor_parallel_degree x context_parallel_degree": tensor * context,
            "expert_parallel_degree": config.expert_parallel_degree or 1,
        }
        problems += [
            f"{_FIELD}: {name} is {size}, which does not divide the {world} processes of {nodes} nodes x "
            f"{job.processes_per_node}; choose degrees that do"
            for name, size in groups.items()
            if world % size
        ]
    if shard and context > shard:
        problems.append(
            f"{_FIELD}.context_parallel_degree: {context} is more than hybrid_shard_degree {shard}; at most that"
        )
    return problems


def _worlds(job: Job) -> list[tuple[int, int]]:
    """(nodes, processes of the whole job) of every point."""
    return [(nodes, nodes * job.processes_per_node) for nodes in job.node_counts]


# -- images ------------------------------------------------------------------------------------------------------------

ImageTest = Callable[[ImageFacts], bool]


def image_is(fits: ImageTest, needs: str) -> Rule:
    """The AWS container that runs as it is must fit; an unknown image and one that was built upon pass."""

    def rule(job: Job) -> list[str]:
        image = job.image
        if image is None or image.extended or fits(image):
            return []
        return [
            f"{image.field}: {image.uri} is {image.repository} {image.version_text} for {image.device}; kind "
            f"{job.distribution.kind} needs {needs}; use such an image, or another kind"
        ]

    return rule


def base_is(fits: ImageTest, needs: str) -> Rule:
    """The hint beside `image_is` where the container was built upon: what was added is not known here."""

    def rule(job: Job) -> list[str]:
        image = job.image
        if image is None or not image.extended or fits(image):
            return []
        return [
            f"image: {image.uri} has nothing for kind {job.distribution.kind}, which needs {needs}; "
            "make sure that what is built on it does"
        ]

    return rule


def ranks_come_from_smddprun(fits: ImageTest) -> Rule:
    """pytorchddp's program finds RANK and WORLD_SIZE set where smddprun is, which is part of SMDDP."""

    def rule(job: Job) -> list[str]:
        if job.image is None or fits(job.image):
            return []
        return [
            f"image: {job.image.uri} has no SMDDP, so no smddprun sets RANK, WORLD_SIZE and LOCAL_RANK under kind "
            f"{job.distribution.kind}, and the SDK v2 refuses such a version; the program must take them from Open MPI "
            "(OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK), as the shipped one does"
        ]

    return rule


def mpi4py_is_there(job: Job) -> list[str]:
    """Every rank is `python -m mpi4py`; AWS's CUDA containers of PyTorch 2.11 and later lack it (their lock files)."""
    image = job.image
    if image is None:
        return [
            f"image: kind {job.distribution.kind} starts `python -m mpi4py` through mpirun over SSH; this image must "
            "hold mpi4py (or the code a requirements.txt with it), Open MPI 4 and an SSH server"
        ]
    if image.cuda is None or image.version < (2, 11):
        return []
    return [
        f"image: {image.uri} has no mpi4py, which the launcher of kind {job.distribution.kind} starts; "
        "put mpi4py into the requirements.txt beside your code"
    ]


# -- hints -------------------------------------------------------------------------------------------------------------


def efa_is_used(job: Job) -> list[str]:
    """Launchers turn EFA on for the instance types they know; elsewhere NCCL may fall back to TCP unnoticed.

    Without accelerators gloo carries the gradients, which has no libfabric.
    """
    if job.instance.accelerators == 0:
        return []
    plain = job.distribution.kind in ("none", "parameter_server")
    settings, launcher_knows = efa_settings(job.instance), job.instance.instance_type in TOOLKIT_EFA_TYPES and not plain
    given = {option.partition("=")[0] for option in job.custom_mpi_options} | set(job.training.environment)
    if not settings or launcher_knows or PROVIDER in given or getattr(job.distribution, "efa_flags", False):
        return []
    text = ", ".join(f'{name}: "{value}"' for name, value in settings.items())
    return [
        f"training.environment: {job.instance.instance_type} has an Elastic Fabric Adapter that nothing turns on under "
        f"kind {job.distribution.kind}; add {{{text}}}"
    ]


def adapter_is_there(job: Job) -> list[str]:
    """FI_PROVIDER=efa on an instance without an adapter: NCCL's OFI plugin finds no provider and says so in the log,
    and NCCL goes on with TCP sockets (NVIDIA/nccl#229; aws/aws-ofi-nccl#174 shows the warnings on ml.p3.16xlarge).

    Under smddp and pytorchddp the toolkit sets it itself, whatever the instance type (sagemaker-training 5.1.4,
    smdataparallel.py). It is a hint, since jobs train all the same; a transport that demands libfabric would not.
    """
    if job.instance.efa is not False or job.instance.emulated:
        return []
    kind, settings = job.distribution.kind, {f"{PROVIDER}=efa", f"{DEVICE_RDMA}=1"}
    environment = {f"{name}={value}" for name, value in job.training.environment.items()}
    places = [
        (f"{_FIELD}.custom_mpi_options", sorted(settings.intersection(job.custom_mpi_options)), "leave it out"),
        ("training.environment", sorted(settings & environment), "leave it out"),
        (f"{_FIELD}.kind", [f"{PROVIDER}=efa"] if kind in ("smddp", "pytorchddp") else [],
         f"SageMaker's toolkit sets it under {kind}; torch_distributed does not"),
    ]  # fmt: skip
    return [
        f"{field}: {' and '.join(found)}, but {job.instance.instance_type} has no Elastic Fabric Adapter; NCCL warns "
        f"that it finds no provider and goes on with TCP; {remedy}"
        for field, found, remedy in places
        if found
    ]


def what_is_unknown(job: Job) -> list[str]:
    """Facts that the catalogue does not hold and what is therefore not checked."""
    instance, given = job.instance, getattr(job.distribution, "processes_per_node", None)
    said = []
    if instance.devices is None and given is not None:
        said.append(
            f"{_FIELD}.processes_per_node: how many devices the framework sees on {instance.instance_type} is unknown, "
            f"so {given} is not held against it"
        )
    if instance.efa is None:
        said.append(
            f"training.instance_type: whether {instance.instance_type} has an Elastic Fabric Adapter is unknown, so "
            "nothing turns one on, and settings for it are not checked"
        )
    return said


def launch_path_only(job: Job) -> list[str]:
    """On an emulated node AWS's own libraries are missing."""
    if not job.instance.emulated:
        return []
    return [
        f"{_FIELD}.kind: the library of {job.distribution.kind} is on AWS only; {job.instance.instance_type} rehearses "
        "the launch, and its times are no measurement of it"
    ]


def parameter_server_is_plain(job: Job) -> list[str]:
    """The PyTorch toolkit ignores the parameter-server flag."""
    return [
        f"{_FIELD}.kind: with PyTorch parameter_server starts no server and runs as kind none, one plain process per "
        "node; use torch_distributed for one process per accelerator"
    ]


def p3_is_slow_with_smddp(job: Job) -> list[str]:
    """AWS's list of instance types no longer names p3.16xlarge, the SDK's does."""
    if job.instance.family not in ("p3", "p3dn"):
        return []
    return [
        f"training.instance_type: SMDDP is no longer optimised for {job.instance.instance_type} (AWS developer guide); "
        "expect NCCL's speed"
    ]
