"""What of each option was ever run, how, and in which versions;
docs/distribution.md shows it under "What was run".

Four depths, each proving more than the one before: the request alone; the command that the real
toolkit makes of it; the job run to its end by that launcher over gloo, on CPUs; the job in AWS's
container on the hardware it is meant for. An empty tuple: never.
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
"""PyTorch versions under which the shipped program trained, saved and resumed with 2 ranks over
gloo on CPUs, whichever launcher started it. A run of the version matrix is entered here.
"""

SDK = ("SDK 2.257.7",)
TOOLKIT = ("toolkits 5.1.4 and 3.0.0, torch 2.13.0",)
"""sagemaker-training, sagemaker-pytorch-training and what lies beside them."""
REQUEST_EVIDENCE = "tests/nodesweep/scaling/planning/test_request.py"
LAUNCH_EVIDENCE = "tests/infra/image/test_toolkit_launches.py"


@dataclass(frozen=True)
class Run:
    """Jobs that ran to their end: in which versions, what they were,
    and the test or dated result that shows it.
    """

    versions: tuple[str, ...]
    what: str
    evidence: str


@dataclass(frozen=True)
class Trials:
    """How far one option was taken."""

    request: tuple[str, ...] = SDK
    launch: tuple[str, ...] = TOOLKIT
    gloo: tuple[Run, ...] = ()
    full: tuple[Run, ...] = ()
    never: str = ""
    """What of it has never run, where the columns don't say it."""


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
    "smp_v2": Trials(
        never="torch.sagemaker: what the program does with it is written from AWS's documents"
    ),
    "mpi": Trials(gloo=(_MPIRUN,)),
    "parameter_server": Trials(never="a server; the launch is that of none"),
    "trainium": Trials(
        never=(
            "torch_xla and Neuron: what the program does with them is written from their documents"
        )
    ),
    "horovod": Trials(never="Horovod; the launch is that of mpi"),
}
