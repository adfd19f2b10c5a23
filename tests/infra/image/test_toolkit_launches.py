"""The job of every shipped config, from its request through the real toolkit to the arguments that
its program parses.

The request is built as in a run, and the files of /opt/ml are written as by the platform.
sagemaker-training with sagemaker-pytorch-training read them, choose the launcher and build its
command. No command is executed, because this machine has no GPU, no mpirun and no libraries of AWS.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from training.arguments import parse_arguments
from training.data.batching import plan_batch

from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import PRESETS_DIRECTORY, preset_names
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import PlannedPoint, plan_sweep
from nodesweep.scaling.rules.distribution import option_of, processes_per_node, ranks_per_replica
from nodesweep.scaling.rules.offline import check
from nodesweep.scaling.rules.rule import Facts
from nodesweep.tasks.jobs.source import pack
from sagemaker_emulator.engine.host.network import Loopback
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from sagemaker_emulator.engine.run.node_environment import node_environment
from sagemaker_emulator.engine.run.node_files import make_nodes
from sagemaker_emulator.interfaces import AccessKey, JobSpec
from tests.nodesweep.launch.sagemaker.rendered import build_request

pytestmark = pytest.mark.slow

COMMANDS = Path(__file__).with_name("toolkit_commands.py")
NODE_COUNTS = (1, 8)
AWS_ENVIRONMENT = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}
DEADLINE_SECONDS = 1800  # that only a hang reaches
KEY = AccessKey("LOCALNODE0", "of-the-node")


@dataclass(frozen=True)
class Launch:
    """A config's job at one node count: its plan, and the commands of the first and the last
    node."""

    config: BenchmarkConfig
    point: PlannedPoint
    instance: InstanceType
    nodes: Mapping[str, Mapping[str, Any]]

    @property
    def first(self) -> Mapping[str, Any]:
        return self.nodes["algo-1"]

    def command(self, host: str) -> list[str]:
        node = self.nodes[host]
        assert not node.get("failure") and node["exit_code"] == 0, node.get("failure")
        return list(node["command"])

    def program_arguments(self, host: str = "algo-1") -> list[str]:
        command = self.command(host)
        return command[command.index(self.config.training.entry_point) + 1 :]


def config_at(preset: str) -> BenchmarkConfig:
    counts = f"sweep.node_counts={list(NODE_COUNTS)}"
    return load_config(PRESETS_DIRECTORY / f"{preset}.yaml", [counts, "sweep.budget_usd=null"])


def request_of(config: BenchmarkConfig, point: PlannedPoint, source: Path | None) -> dict[str, Any]:
    inputs = ResolvedInputs(
        sweep_id="bench-20260102030405-0a1b2c3d",
        image_uri=config.image.uri
        or "123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep@sha256:" + "a" * 64,
        dataset_uri="s3://bucket/data/",
        source_uri=None if source is None else str(source),
    )
    return build_request(config, point, inputs)


def job_of(request: Mapping[str, Any]) -> JobSpec:
    """Return the accepted request, as far as a node needs it."""
    return JobSpec(
        job_name=request["TrainingJobName"],
        job_arn=(
            f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{request['TrainingJobName']}"
        ),
        region="us-east-1",
        image_uri=request["AlgorithmSpecification"]["TrainingImage"],
        instance_type=request["ResourceConfig"]["InstanceType"],
        instance_count=request["ResourceConfig"]["InstanceCount"],
        hyperparameters=request["HyperParameters"],
        environment=request.get("Environment", {}),
        input_data_config=request.get("InputDataConfig", []),
        checkpoint_config=request.get("CheckpointConfig"),
    )


def write_tools(folder: Path, instance: InstanceType) -> Path:
    """Write the tools that the toolkit calls on a node: those that list accelerators, and AWS's
    launchers."""
    folder.mkdir(parents=True)
    is_neuron = (instance.accelerator or "").startswith("Trainium")
    gpus = 0 if is_neuron else instance.devices
    scripts = {
        "nvidia-smi": (
            "".join(f"echo 'GPU {i}: (UUID: GPU-{i})'\n" for i in range(gpus)) or "exit 9\n"
        ),
        "neuron-ls": (
            f"echo '{json.dumps([{'nc_count': instance.devices}] if is_neuron else [])}'\n"
        ),
        "smddprun": "exit 9\n",
        "smddpmprun": "exit 9\n",
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    return folder


def own_image(folder: Path, program: str | None) -> Path:
    """An AWS container with a program in /opt/ml/code, for jobs that send no program."""
    (folder / "code").mkdir(parents=True)
    if program is not None:
        (folder / "code" / program).write_text("")
    return folder


def packed_source(config: BenchmarkConfig, archive: Path) -> Path | None:
    """Return the code as a run packs it; the toolkit unpacks it from a file instead of S3."""
    if config.training.source_dir is None:
        return None
    archive.write_bytes(pack(Path(config.training.source_dir), config.training.entry_point))
    return archive


@pytest.fixture(scope="module")
def launches(
    image_store: ProcessImageStore, image_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], Launch]:
    """Return the launches of every config at every node count, from one process of the image's
    Python."""
    folder = tmp_path_factory.mktemp("nodes")
    shipped = image_store.resolve(image_uri)
    assert shipped is not None
    shipped_environment = json.loads((shipped / "image.json").read_text())["environment"]
    jobs, questions = [], []
    for preset in preset_names():
        config = config_at(preset)
        instance = load_catalogue().get(config.training.instance_type)
        plan = plan_sweep(config, instance)
        assert check(Facts(config, instance, plan)).problems == (), preset
        source = packed_source(config, folder / f"{config.name}.tar.gz")
        is_shipped = shipped_program(preset)
        baked = own_image(
            folder / "images" / preset, None if source else config.training.entry_point
        )
        tools = write_tools(folder / "tools" / preset, instance)
        for count in NODE_COUNTS:
            point = next(
                point for point in plan.points if (point.nodes, point.repeat) == (count, 1)
            )
            job = job_of(request_of(config, point, source))
            nodes = make_nodes(
                folder / preset, job, True, shipped if is_shipped else baked, Loopback(1, "a test")
            )
            image_environment = shipped_environment if is_shipped else AWS_ENVIRONMENT
            jobs.append((preset, config.of_arm(point.arm.name), point, instance))
            for node in (nodes[0], nodes[-1])[: 2 if count > 1 else 1]:
                environment = node_environment(
                    job, node, shipped, image_environment, 1.0, "http://127.0.0.1:9", KEY, "test"
                )
                environment["PATH"] = f"{tools}:{environment['PATH']}"
                questions.append({"key": (preset, count, node.host), "environment": environment})
    (folder / "nodes.json").write_text(json.dumps(questions))
    python = str(shipped / "venv" / "bin" / "python")
    done = subprocess.run(
        [python, str(COMMANDS), str(folder / "nodes.json")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = dict(
        zip((q["key"] for q in questions), map(json.loads, done.stdout.splitlines()), strict=True)
    )
    return {
        (preset, point.nodes): Launch(
            config,
            point,
            instance,
            {key[2]: answer for key, answer in answers.items() if key[:2] == (preset, point.nodes)},
        )
        for preset, config, point, instance in jobs
    }


def shipped_program(preset: str) -> bool:
    config = config_at(preset)
    return config.image.uri is None and config.training.source_dir is None


def every_config(only: Callable[[str], bool] = lambda _preset: True) -> pytest.MarkDecorator:
    cases = [(preset, count) for preset in preset_names() if only(preset) for count in NODE_COUNTS]
    return pytest.mark.parametrize(("preset", "count"), cases)


def launched_by(launcher: str) -> Callable[[str], bool]:
    return lambda preset: option_of(config_at(preset).training.distribution).launcher == launcher


def with_values(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


@every_config(shipped_program)
def test_the_programs_parsed_arguments_are_the_points(launches, preset, count):
    launch = launches[preset, count]
    arguments = parse_arguments(launch.program_arguments(), launch.first["environment"])
    point, training = launch.point, launch.config.training
    assert arguments.data == Path(launch.first["environment"]["SM_CHANNEL_TRAINING"])
    assert arguments.per_replica_batch_size == point.per_replica_batch_size
    assert arguments.global_batch_size == point.global_batch_size
    assert (arguments.learning_rate, arguments.seed) == (
        pytest.approx(point.learning_rate),
        point.seed,
    )
    assert arguments.model == training.hyperparameters["model"]
    for name in ("epochs", "layers", "strategy", "backend", "precision", "optimizer"):
        if name in training.hyperparameters:
            assert getattr(arguments, name) == training.hyperparameters[name], name
    replicas = point.world_size // ranks_per_replica(training.distribution)
    plan_batch(
        replicas,
        arguments.per_replica_batch_size,
        arguments.accumulate_grad_batches,
        point.global_batch_size,
    )


@every_config(lambda preset: not shipped_program(preset))
def test_the_users_own_program_gets_the_hyperparameters_of_the_config(launches, preset, count):
    launch = launches[preset, count]
    given = with_values(launch.program_arguments())
    asked = {f"--{name}" for name in launch.config.training.hyperparameters}
    assert given.keys() - {"--mp_parameters"} == asked
    assert ("--mp_parameters" in given) is (launch.config.training.distribution.kind == "smp_v1")
    if launch.config.training.source_dir is not None:
        unpacked = Path(launch.first["directory"]) / launch.config.training.entry_point
        own = Path(launch.config.training.source_dir) / launch.config.training.entry_point
        assert unpacked.read_text() == own.read_text()
        # what is copied next to a script is loaded as Python starts (docs/own-code.md)
        path = launch.first["environment"]["PYTHONPATH"]
        assert path.split(":")[0] == launch.first["directory"]
    names = {
        "{per_replica_batch_size}": launch.point.per_replica_batch_size,
        "{learning_rate}": 0.1,
        "{seed}": 1,
    }
    for name, value in launch.config.training.hyperparameters.items():
        assert given[f"--{name}"] == str(names.get(value, value)), name


@every_config(launched_by("plain"))
def test_one_plain_process_per_node(launches, preset, count):
    launch = launches[preset, count]
    for host in launch.nodes:
        python, options_end, program, *arguments = launch.command(host)
        assert Path(python).name.startswith("python")
        assert (options_end, program) == ("--", launch.config.training.entry_point)
        assert arguments == launch.program_arguments()
        environment = launch.nodes[host]["environment"]
        assert (environment["SM_CURRENT_HOST"], len(json.loads(environment["SM_HOSTS"]))) == (
            host,
            count,
        )


@every_config(launched_by("torchrun"))
def test_torchrun_on_every_node(launches, preset, count):
    launch = launches[preset, count]
    processes = processes_per_node(launch.config.training.distribution, launch.instance)
    assert launch.point.world_size == count * processes
    for rank, host in zip((0, count - 1), launch.nodes, strict=False):
        one_node = ["torchrun", "--nnodes", str(count), "--nproc_per_node", str(processes)]
        places = (
            ["--master_addr", "algo-1", "--master_port", "7777", "--node_rank", str(rank)]
            if count > 1
            else []
        )
        program = launch.config.training.entry_point
        assert launch.command(host) == [*one_node, *places, program, *launch.program_arguments()]


@every_config(launched_by("mpirun"))
def test_mpirun_from_the_first_node(launches, preset, count):
    launch = launches[preset, count]
    command = launch.command("algo-1")
    processes = processes_per_node(launch.config.training.distribution, launch.instance)
    options, program = command[: command.index("-m")], command[command.index("-m") :]
    assert options[0] == "mpirun" and options[options.index("-np") + 1] == str(
        launch.point.world_size
    )
    assert launch.point.world_size == count * processes
    assert program[:3] == ["-m", "mpi4py", launch.config.training.entry_point]
    hosts = options[options.index("--host") + 1].split(",")
    assert len(hosts) == count and all(
        host.partition(":")[2] in ("", str(processes)) for host in hosts
    )
    parameters = [value for name, value in pairwise(options) if name.lstrip("-") in ("mca", "gmca")]
    assert len(parameters) == len(set(parameters)), (
        "mpirun ends where an MCA parameter stands twice"
    )
    kind = launch.config.training.distribution.kind
    assert ("smddprun" in options) is (kind in ("smddp", "pytorchddp"))
    assert ("smddpmprun" in options) is (kind == "smp_v1")
    others = [launch.nodes[host] for host in launch.nodes if host != "algo-1"]
    assert all((node["command"], node["exit_code"]) == (None, 0) for node in others)


def test_every_launcher_is_walked():
    walked = {
        option_of(config_at(preset).training.distribution).launcher for preset in preset_names()
    }
    assert walked == {"plain", "torchrun", "mpirun"}
