"""The ten distribution options.

Sources: SageMaker SDK 2.257.7 (hyperparameters; tests/nodesweep/scaling/golden_requests has
recordings), sagemaker-training 5.1.4 and sagemaker-pytorch-training 3.0.0 (execution), AWS
developer guide (support).
"""

from __future__ import annotations

from nodesweep.scaling.rules.distribution import hyperparameters, rules
from nodesweep.scaling.rules.distribution.option import Option
from nodesweep.scaling.rules.images import (
    MODEL_PARALLEL,
    NEURON,
    PYTORCH,
    SMDDP_BY_PATCH,
    ImageFacts,
)

SMDDP_TYPES = ("ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")
SMDDP_ALLGATHER_TYPES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
SMP_V1_TYPES = ("ml.g4dn.12xlarge", *SMDDP_TYPES)
SMP_V2_TYPES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge", "ml.p5e.48xlarge")
SDK_SMDDP_VERSIONS = frozenset(
    {(1, 6), (1, 6, 0), (1, 7), (1, 7, 1), (1, 8), (1, 8, 0), (1, 8, 1), (1, 9), (1, 9, 0),
     (1, 9, 1), (1, 10), (1, 10, 0), (1, 10, 2), (1, 11), (1, 11, 0), (1, 12), (1, 12, 0),
     (1, 12, 1), (1, 13, 1), (2, 0, 0), (2, 0, 1), (2, 1, 0), (2, 1, 2), (2, 2, 0)}
)  # fmt: skip
"""PyTorch versions for smddp and pytorchddp, which the SDK turns into smddp before checking.

From SDK 2.257.7, SM_DATAPARALLEL_SUPPORTED_FRAMEWORK_VERSIONS;
tests/nodesweep/scaling/sdk_tables.json has a recording of it.
"""
SMDDP_VERSIONS = SDK_SMDDP_VERSIONS | {(2, 3, 0)}
"""The SDK's versions and 2.3.0, which is in AWS's table of containers with SMDDP."""
_MP_ARGUMENT = (
    "The toolkit also passes the parameters to the program, as one argument `--mp_parameters "
    "name=value,…`: accept it, or ignore unknown arguments (parse_known_args)."
)
_MPI_TAIL = (
    "An mpirun job ends with a fixed wait of 30 s, which is billed but not part of the train clock."
)
_MPI_HOST = "SM_CURRENT_HOST is the first node on every rank (sagemaker-training-toolkit#158)."
_MPI_MASTER = (
    "MASTER_ADDR and MASTER_PORT reach other nodes only if sshd reads /etc/environment through"
    " PAM; otherwise add `-x MASTER_ADDR -x MASTER_PORT` to custom_mpi_options."
)
_MPI_RANKS = (
    "Take rank and world size from OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK;"
    " RANK and WORLD_SIZE are not set."
)
_MPI4PY = (
    "CUDA containers of PyTorch 2.11 and later have no mpi4py, which the launcher needs: add it "
    "to requirements.txt."
)
_MPI_IMAGE = (
    "any with Open MPI 4, an SSH server, mpi4py and the SageMaker toolkits, e.g. …/pytorch-training"
)
_TORCHRUN_PROGRAM = (
    "Call init_process_group(); torchrun sets RANK, WORLD_SIZE, LOCAL_RANK,"
    " MASTER_ADDR and MASTER_PORT."
)
_NEEDS_TOOLKIT = (
    "Only sagemaker-pytorch-training starts torchrun: an image with the bare sagemaker-training"
    " toolkit ignores the flag and runs one plain process per node."
)


def _has_torchrun(image: ImageFacts) -> bool:
    return image.version >= (1, 13)


def _has_pytorchddp(image: ImageFacts) -> bool:
    """Return True for PyTorch 1.11 and later, as in the SDK's documentation.

    The SDK's table starts earlier and ends at 2.2.0, but the launch also works without SMDDP.
    """
    return image.version >= (1, 11)


def _has_smddp(image: ImageFacts) -> bool:
    """Return True if the container has SMDDP.

    Some PyTorch containers have it, and so do the SMP v2 containers from 2.1 on. The SDK refuses
    one tag.
    """
    if image.repository in MODEL_PARALLEL:
        return image.version >= (2, 1)
    refused = image.version == (2, 0, 1) and image.cuda == "121"
    versions = SMDDP_VERSIONS | SMDDP_BY_PATCH
    return (
        image.repository in PYTORCH
        and image.device == "gpu"
        and image.version in versions
        and not refused
    )


def _has_smp_v1(image: ImageFacts) -> bool:
    cuda_11 = (image.cuda or "").startswith("11")
    return image.repository in PYTORCH and cuda_11 and (1, 6) <= image.version < (2, 1)


def _has_smp_v2(image: ImageFacts) -> bool:
    return image.repository in MODEL_PARALLEL


def _has_neuron(image: ImageFacts) -> bool:
    return image.repository in NEURON


_TORCHRUN_NEEDS = "PyTorch 1.13 or later"
_PYTORCHDDP_NEEDS = "PyTorch 1.11 or later"
_SMDDP_NEEDS = (
    "a container with SMDDP: …/pytorch-training for GPU, 1.6 to 2.2.0, 2.3.0 or a late patch of"
    " 2.4.0 and 2.5.1, or …/smdistributed-modelparallel of 2.1 or later"
)
_SMP_V1_NEEDS = (
    "a container with smdistributed.modelparallel 1.x: …/pytorch-training 1.6 to 2.0 with CUDA 11"
)
_SMP_V2_NEEDS = (
    "the SMP container: 658645717510.dkr.ecr.REGION.amazonaws.com/smdistributed-modelparallel:…"
)
_NEURON_NEEDS = "a Neuron container: …/pytorch-training-neuronx:…"
LIBRARIES = {
    ("backend", "smddp"): (_has_smddp, _SMDDP_NEEDS),
    ("backend", "xla"): (_has_neuron, _NEURON_NEEDS),
    ("strategy", "smp"): (_has_smp_v2, _SMP_V2_NEEDS),
}
"""For each argument of the shipped program that imports a library, a test for the library and a
description of the images that have it.
"""
_MPI_RULES = (rules.mca_given_once, rules.options_without_quotes, rules.rdma_is_supported)
_ALWAYS = (rules.no_model_parallel_hyperparameter, rules.processes_fit)

OPTIONS = (
    Option(
        kind="none",
        sdk_argument="none",
        launcher="plain",
        runs_as="`python train.py …`, one process per node",
        instances="any",
        image_family="any with the SageMaker toolkits, or one that brings its own entry point",
        program_must=(
            (
                "Set up its own process group: nodes are SM_HOSTS in sorted order, this one is"
                " SM_CURRENT_HOST."
            ),
            "Start more processes itself to use more than one accelerator per node.",
        ),
        known_wrong=(
            "MASTER_ADDR and MASTER_PORT are set, but only by sagemaker-pytorch-training; ranks "
            "are not.",
        ),
        hyperparameters=hyperparameters.none,
        rules=(*_ALWAYS, rules.rdma_is_supported, rules.efa_is_used),
    ),
    Option(
        kind="torch_distributed",
        sdk_argument='{"torch_distributed": {"enabled": True}}',
        launcher="torchrun",
        runs_as="`torchrun --nnodes N --nproc_per_node P … train.py …` on every node",
        instances=(
            "any; on CPU instances the SDK requires an image URI, which nodesweep always sends"
        ),
        image_family=(
            "…/pytorch-training 1.13 or later, …/pytorch, or any with sagemaker-pytorch-training"
        ),
        program_must=(_TORCHRUN_PROGRAM, "Be a .py file."),
        known_wrong=(
            _NEEDS_TOOLKIT,
            "The toolkit forces NCCL_PROTO=simple, even on one node, and port 7777.",
            (
                "The SDK has no key for processes_per_node;"
                " the toolkit reads mpirun's for torchrun too."
            ),
            (
                'With smddp: true the SDK\'s two options are combined (with `"smdistributed":'
                ' {"dataparallel": {"enabled": True}}`) and SMDDP\'s keys are sent too. The toolkit'
                " still starts torchrun and reads none of them: what counts is the program's"
                ' init_process_group("smddp"). The SDK then accepts p5, which is not on AWS\'s'
                " list."
            ),
        ),
        hyperparameters=hyperparameters.torchrun,
        rules=(
            *_ALWAYS,
            rules.python_program,
            rules.rdma_is_supported,
            rules.image_is(_has_torchrun, _TORCHRUN_NEEDS),
            rules.allgather_on(SMDDP_ALLGATHER_TYPES),
            rules.only_if(rules.with_smddp, rules.image_is(_has_smddp, _SMDDP_NEEDS)),
            rules.efa_is_used,
            rules.only_if(rules.with_smddp, rules.launch_path_only),
            rules.only_if(rules.with_smddp, rules.base_is(_has_smddp, _SMDDP_NEEDS)),
        ),
    ),
    Option(
        kind="pytorchddp",
        sdk_argument='{"pytorchddp": {"enabled": True, "custom_mpi_options": …}}',
        launcher="mpirun",
        runs_as=(
            "`mpirun … python -m mpi4py train.py …` from the first node,"
            " one process per accelerator"
        ),
        instances="any but Trainium",
        image_family="…/pytorch-training 1.11 or later",
        program_must=(
            (
                "Wrap the model in DistributedDataParallel and call init_process_group(); nothing"
                " else changes if smddprun sets RANK, WORLD_SIZE and LOCAL_RANK."
            ),
            (
                "Without SMDDP in the image (PyTorch containers after 2.3.0) take them from"
                " OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK."
            ),
        ),
        known_wrong=(
            (
                "SDK v2 sends smddp's keys for it, so it is launched like smddp, with smddprun"
                " if that is installed. The toolkit's own path for it"
                " (sagemaker_pytorch_ddp_enabled) is never sent."
            ),
            "FI_PROVIDER=efa is exported on every instance type, even those without EFA.",
            "SDK v3 has no equivalent.",
            _MPI_TAIL,
            _MPI4PY,
        ),
        hyperparameters=hyperparameters.smddp,
        rules=(
            *_ALWAYS,
            rules.not_on_trainium,
            *_MPI_RULES,
            rules.image_is(_has_pytorchddp, _PYTORCHDDP_NEEDS),
            rules.ranks_come_from_smddprun(_has_smddp),
            rules.mpi4py_is_there,
        ),
    ),
    Option(
        kind="smddp",
        sdk_argument=(
            '{"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": …}}}'
        ),
        launcher="mpirun",
        runs_as=(
            "`mpirun … smddprun python -m mpi4py train.py …` from the first node, one process per"
            " GPU; smddprun if it is installed"
        ),
        instances=", ".join(SMDDP_TYPES),
        image_family=_SMDDP_NEEDS,
        program_must=(
            (
                "`import smdistributed.dataparallel.torch.torch_smddp`, guarded if it must also "
                "run without it."
            ),
            (
                'init_process_group("smddp"); Lightning: DDPStrategy(process_group_backend="smddp")'
                " with an environment whose world_size and global_rank read WORLD_SIZE and RANK."
            ),
            "One process per GPU, torch.cuda.set_device(LOCAL_RANK).",
        ),
        known_wrong=(
            "Neither SDK checks the instance type; SDK v2 refuses only p5.48xlarge.",
            (
                "p3.16xlarge is in the SDK's list but no longer in AWS's; on P3 the library is no "
                "longer developed. Its AllGather is for P4 only."
            ),
            (
                "After 2.3.0, the only PyTorch containers with it are late patches of 2.4.0 and "
                "2.5.1; the SMP containers have it."
            ),
            "Never together with model parallelism.",
            _MPI_TAIL,
            _MPI4PY,
        ),
        hyperparameters=hyperparameters.smddp,
        rules=(
            *_ALWAYS,
            rules.only_on(SMDDP_TYPES, "SMDDP's list"),
            *_MPI_RULES,
            rules.image_is(_has_smddp, _SMDDP_NEEDS),
            rules.launch_path_only,
            rules.p3_is_slow_with_smddp,
            rules.base_is(_has_smddp, _SMDDP_NEEDS),
            rules.mpi4py_is_there,
        ),
    ),
    Option(
        kind="smp_v1",
        sdk_argument=(
            '{"smdistributed": {"modelparallel": {"enabled": True, "parameters": {…}}}, "mpi": {…}}'
        ),
        launcher="mpirun",
        runs_as=(
            "`mpirun … smddpmprun -i TYPE --allow-bypass python -m mpi4py train.py …` from the"
            " first node; smddpmprun if it is installed"
        ),
        instances=", ".join(SMP_V1_TYPES),
        image_family=_SMP_V1_NEEDS,
        program_must=(
            "smp.init(), torch.cuda.set_device(smp.local_rank()): one process per GPU.",
            (
                "Wrap model and optimizer (smp.DistributedModel, smp.DistributedOptimizer); step"
                " inside @smp.step."
            ),
            "Read its share of the data according to smp.dp_rank() and smp.dp_size().",
        ),
        known_wrong=(
            "Archived by AWS in favor of 2.x; needs CUDA 11.",
            (
                "partitions × data-parallel degree must equal the number of processes; the SDK "
                "checks neither that nor the processes against the GPUs."
            ),
            (
                "The toolkit passes `-mca btl_vader_single_copy_mechanism none` itself; mpirun "
                "aborts if it is given twice."
            ),
            (
                "AWS's guide recommends FI_EFA_USE_DEVICE_RDMA=1 on p3dn too, whose adapter "
                "doesn't support it: libfabric aborts. nodesweep sets it only where the adapter "
                "supports it."
            ),
            _MP_ARGUMENT,
            "horovod and contiguous are for TensorFlow; the SDK sends them for PyTorch too.",
            "SDK v3 has no equivalent.",
            _MPI_TAIL,
        ),
        hyperparameters=hyperparameters.smp_v1,
        rules=(
            *_ALWAYS,
            rules.only_on(SMP_V1_TYPES, "the library's list"),
            rules.partitions_fill_the_job,
            rules.microbatches_divide_the_batch,
            *_MPI_RULES,
            rules.image_is(_has_smp_v1, _SMP_V1_NEEDS),
            rules.launch_path_only,
            rules.base_is(_has_smp_v1, _SMP_V1_NEEDS),
            rules.efa_is_used,
            rules.mpi4py_is_there,
        ),
    ),
    Option(
        kind="smp_v2",
        sdk_argument=(
            '{"smdistributed": {"modelparallel": {"enabled": True, "parameters": {…}}}, '
            '"torch_distributed": {"enabled": True}}'
        ),
        launcher="torchrun",
        runs_as="`torchrun … train.py …` on every node, one process per GPU",
        instances=", ".join(SMP_V2_TYPES),
        image_family=_SMP_V2_NEEDS,
        program_must=(
            "`import torch.sagemaker as tsm; tsm.init()`, then PyTorch FSDP as usual.",
            (
                "For tensor parallelism tsm.transform(model); ranks that share a layer must read"
                " the same samples."
            ),
            _TORCHRUN_PROGRAM,
        ),
        known_wrong=(
            (
                "The SDK changes the image to the SMP container when no image is given; here"
                " image.framework does, and image.uri or image.base_image may name it."
            ),
            _MP_ARGUMENT,
            (
                "Both SMDDP's flag (false) and torchrun's (true) are sent;"
                " torchrun wins in the toolkit."
            ),
        ),
        hyperparameters=hyperparameters.smp_v2,
        rules=(
            *_ALWAYS,
            rules.only_on(SMP_V2_TYPES, "the library's list"),
            rules.python_program,
            rules.degrees_fill_the_job,
            rules.rdma_is_supported,
            rules.image_is(_has_smp_v2, _SMP_V2_NEEDS),
            rules.launch_path_only,
            rules.base_is(_has_smp_v2, _SMP_V2_NEEDS),
            rules.efa_is_used,
        ),
    ),
    Option(
        kind="mpi",
        sdk_argument='{"mpi": {"enabled": True, "processes_per_host": P, "custom_mpi_options": …}}',
        launcher="mpirun",
        runs_as="`mpirun -np N·P … python -m mpi4py train.py …` from the first node",
        instances="any but Trainium",
        image_family=_MPI_IMAGE,
        program_must=(_MPI_RANKS, "Initialize torch.distributed with them, or use mpi4py itself."),
        known_wrong=(
            _MPI_HOST,
            _MPI_MASTER,
            "SDK v3's MPI driver starts ranks on the first node only; this request follows v2.",
            "custom_mpi_options are split at whitespace, without quoting.",
            _MPI_TAIL,
            _MPI4PY,
        ),
        hyperparameters=hyperparameters.mpi,
        rules=(
            *_ALWAYS,
            rules.not_on_trainium,
            *_MPI_RULES,
            rules.efa_is_used,
            rules.mpi4py_is_there,
        ),
    ),
    Option(
        kind="parameter_server",
        sdk_argument='{"parameter_server": {"enabled": True}}',
        launcher="plain",
        runs_as="`python train.py …`, one process per node: with PyTorch the flag does nothing",
        instances="any but Trainium",
        image_family="as none",
        program_must=(
            "Bring its own servers and workers, e.g. torch.distributed.rpc, as with none.",
        ),
        known_wrong=(
            "A no-op for PyTorch: sagemaker-pytorch-training does not read the flag.",
            "SDK v3 has no equivalent.",
        ),
        hyperparameters=hyperparameters.parameter_server,
        rules=(
            *_ALWAYS,
            rules.not_on_trainium,
            rules.rdma_is_supported,
            rules.parameter_server_is_plain,
            rules.efa_is_used,
        ),
    ),
    Option(
        kind="trainium",
        sdk_argument='{"torch_distributed": {"enabled": True}}',
        launcher="torchrun",
        runs_as="`torchrun … train.py …` on every node, one process per NeuronCore",
        instances="ml.trn1.*, ml.trn1n.*",
        image_family=_NEURON_NEEDS,
        program_must=(
            (
                'Import torch_xla and init_process_group("xla"); step with xm.optimizer_step or'
                " mark_step."
            ),
            _TORCHRUN_PROGRAM,
        ),
        known_wrong=(
            (
                "Graphs compile in the first steps, which are not steady state: environment "
                "RUN_NEURON_PARALLEL_COMPILE=1 makes the toolkit compile them ahead "
                "(`neuron_parallel_compile torchrun …`) in a separate job."
            ),
            (
                "The SDK's list of Neuron images ends at 1.13.1 and 2.0.0; newer containers need"
                " their full URI."
            ),
            "The toolkit's EFA list does not include trn1n.",
        ),
        hyperparameters=hyperparameters.torchrun,
        rules=(
            *_ALWAYS,
            rules.only_on_trainium,
            rules.python_program,
            rules.rdma_is_supported,
            rules.image_is(_has_neuron, _NEURON_NEEDS),
            rules.launch_path_only,
            rules.base_is(_has_neuron, _NEURON_NEEDS),
            rules.efa_is_used,
        ),
    ),
    Option(
        kind="horovod",
        sdk_argument='{"mpi": {"enabled": True, "processes_per_host": P, "custom_mpi_options": …}}',
        launcher="mpirun",
        runs_as="`mpirun …` as under mpi; Horovod finds its ranks through Open MPI",
        instances="any but Trainium",
        image_family=_MPI_IMAGE + ", and Horovod built with MPI for its PyTorch",
        program_must=(
            (
                "hvd.init(), torch.cuda.set_device(hvd.local_rank()), hvd.DistributedOptimizer;"
                " broadcast rank 0's state."
            ),
        ),
        known_wrong=(
            "Neither toolkit knows Horovod: the request is the same as for mpi, and the image must"
            " contain it.",
            _MPI_HOST,
            _MPI_TAIL,
            _MPI4PY,
        ),
        hyperparameters=hyperparameters.mpi,
        rules=(
            *_ALWAYS,
            rules.not_on_trainium,
            *_MPI_RULES,
            rules.efa_is_used,
            rules.mpi4py_is_there,
        ),
    ),
)
