"""Evidence per option: what has been run, how, and in which versions (docs/distribution.md).

Four depths, each proving more than the previous one: the request alone; the command that the real
toolkit builds from it; the job run to its end by that launcher over gloo on CPUs; and the job in
the AWS container on its intended hardware. An empty tuple means that none has run.
"""

from __future__ import annotations

from dataclasses import dataclass

PROGRAM_ON_GLOO: tuple[str, ...] = (
    "2.1.0",
    "2.2.0",
    "2.3.0",
    "2.4.1",
    "2.5.1",
    "2.6.0",
    "2.7.1",
    "2.8.0",
    "2.9.0",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
)
"""PyTorch versions on which the shipped program trained, saved and resumed over gloo.

It ran with 2 ranks on CPUs. Add a version after a run of the version matrix.
"""

SDK = ("SDK 2.257.7",)
TOOLKIT = ("toolkits 5.1.4 and 3.0.0, torch 2.13.0",)
"""Versions of sagemaker-training and sagemaker-pytorch-training, and the torch they ran with."""
REQUEST_EVIDENCE = "tests/nodesweep/scaling/planning/test_request.py"
LAUNCH_EVIDENCE = "tests/infra/image/test_toolkit_launches.py"


@dataclass(frozen=True)
class Run:
    """Jobs that ran to completion: versions, description and evidence (a test or dated result)."""

    versions: tuple[str, ...]
    what: str
    evidence: str


@dataclass(frozen=True)
class Trials:
    """The evidence for one option."""

    request: tuple[str, ...] = SDK
    launch: tuple[str, ...] = TOOLKIT
    gloo: tuple[Run, ...] = ()
    full: tuple[Run, ...] = ()
    never: str = ""
    """Untested parts that the columns do not show."""


_MPIRUN = Run(
    ("torch 2.13.0",), "2 nodes of 2 processes by mpirun", "tests/containers/test_container_mpi.py"
)
TRIALS = {
    "none": Trials(
        gloo=(Run(("torch 2.13.0",), "1 to 8 nodes of 1 process", "tests/test_end_to_end.py"),)
    ),
    "torch_distributed": Trials(
        gloo=(
            Run(
                ("torch 2.13.0",),
                "2 nodes of 1 process by torchrun",
                "tests/infra/image/test_image_examples.py",
            ),
        ),
        never="SMDDP's AllGather (smddp: true)",
    ),
    "pytorchddp": Trials(gloo=(_MPIRUN,), never="smddprun; the runs over gloo are without SMDDP"),
    "smddp": Trials(
        gloo=(
            _MPIRUN,
            Run(
                ("torch 2.13.0",),
                "a stand-in for the library",
                "tests/infra/image/training/distributed/test_backends.py",
            ),
        ),
        never="SMDDP itself and smddprun",
    ),
    "smp_v1": Trials(never="the library and smddpmprun; no program of this project uses it"),
    "smp_v2": Trials(never="torch.sagemaker; its use follows AWS's documentation"),
    "mpi": Trials(gloo=(_MPIRUN,)),
    "parameter_server": Trials(never="a server; the launch is the same as for kind none"),
    "trainium": Trials(never="torch_xla and Neuron; their use follows their documentation"),
    "horovod": Trials(never="Horovod; the launch is the same as for kind mpi"),
}
