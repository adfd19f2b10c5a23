"""The arguments that start a container, and the folders with the files of nodes."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sagemaker_emulator.engine.container import engine as container_engine
from sagemaker_emulator.engine.container.engine import ContainerEngine, launched_over_ssh
from sagemaker_emulator.engine.container.images import ImageConfig
from sagemaker_emulator.engine.container.nodes import (
    NODE_FOLDER,
    as_of_subprocess,
    environment_script,
)
from sagemaker_emulator.engine.container.quota import YieldingQuotas
from sagemaker_emulator.engine.errors import EngineError
from sagemaker_emulator.engine.host.network import ContainerLinks
from sagemaker_emulator.engine.host.port_lock import SharedSlot, training_slot
from sagemaker_emulator.engine.host.room import Room
from sagemaker_emulator.interfaces import ProcessingFiles
from sagemaker_emulator.training.file_systems import mount_channels


class RecordingCli:
    name, program, environment = "podman", "/usr/bin/podman", {}

    def __init__(self):
        self.calls = []

    def call(self, *arguments, **_):
        self.calls.append(arguments)
        return (
            json.dumps([{"subnets": [{"subnet": "10.1.2.0/24"}]}])
            if arguments[1] == "inspect"
            else ""
        )

    def remove_labelled(self, label):
        self.calls.append(("remove", label))


@pytest.fixture(scope="module")
def links():
    """Limits of this machine; finding them starts processes."""
    return ContainerLinks.find()


START_REAPER = ContainerEngine._start_reaper


@pytest.fixture
def engine(tmp_path, links, monkeypatch):
    """An engine whose reaper, which outlives it, removes nothing."""
    monkeypatch.setattr(ContainerLinks, "find", lambda: links)
    cat = functools.partial(subprocess.Popen, "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    monkeypatch.setattr(ContainerEngine, "_start_reaper", lambda _: cat())
    made = ContainerEngine(tmp_path, None, RecordingCli(), "http://127.0.0.1:4570")
    made.room = Room(2, [0, 1], 1 << 50)
    made._slot = SharedSlot(f"\0test-{tmp_path}")
    yield made
    made.close()


def test_containers_are_removed_when_the_platform_has_ended(engine, tmp_path):
    program = tmp_path / "podman"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    engine._cli.program = str(program)
    START_REAPER(engine).communicate()
    assert f"--filter label={container_engine._OWNER_LABEL}={engine._owner}" in (
        (tmp_path / "calls").read_text()
    )


def options(engine, job):
    nodes = engine.prepare(job)
    return nodes, engine._plan(job, nodes[0], nodes, ImageConfig((), {}), 1)


def test_container_has_the_instance_types_limits_and_no_rights(engine, job):
    _, plan = options(engine, job)
    limits = {"--cpuset-cpus=1", "--cpu-shares=2"}
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", *limits} <= set(plan.options)
    assert {f"--memory={2 << 30}", f"--memory-swap={2 << 30}"} <= set(plan.options)
    assert not [
        option
        for option in plan.options
        if option.startswith(("--cap-add", "--privileged", "--publish"))
    ]
    assert plan.command == ["train"]


def test_image_with_an_entry_point_keeps_it(engine, job):
    nodes = engine.prepare(job)
    plan = engine._plan(job, nodes[0], nodes, ImageConfig(("bash", "start.sh"), {}), 0)
    assert plan.command == ["bash", "start.sh", "train"]


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "command"),
    [
        (["/bin/bash"], ["-c", "a && b"], ["/bin/bash", "-c", "a && b"]),
        (["python", "-m", "mine"], [], ["python", "-m", "mine"]),
        ([], ["--verbose"], ["bash", "start.sh", "--verbose"]),
    ],
)
def test_own_command_replaces_the_images_as_docker_does(
    engine, job, entrypoint, arguments, command
):
    job = replace(job, container_entrypoint=entrypoint, container_arguments=arguments)
    nodes = engine.prepare(job)
    assert (
        engine._plan(job, nodes[0], nodes, ImageConfig(("bash", "start.sh"), {}), 0).command
        == command
    )
    assert engine.command_problem(entrypoint, arguments) is None


@pytest.mark.parametrize(
    ("arguments", "command"),
    [([], ["python3", "app.py", "--all"]), (["--some"], ["python3", "app.py", "--some"])],
)
def test_a_processing_job_runs_its_images_own_command(engine, job, arguments, command):
    files = ProcessingFiles({"ProcessingJobName": "p"}, ["processing/in", "processing/out"])
    job = replace(job, processing=files, container_arguments=arguments)
    nodes = engine.prepare(job)
    image = ImageConfig(("python3", "app.py"), {}, ("--all",))
    plan = engine._plan(job, nodes[0], nodes, image, 0)
    assert plan.command == command
    mounts = [option for option in plan.options if option.startswith("--volume=")]
    inside = {option.rpartition(":")[2] for option in mounts} - {NODE_FOLDER}
    assert inside == {"/opt/ml/config", "/opt/ml/output", "/opt/ml/processing"}
    assert (nodes[0].opt_ml / "processing" / "out").is_dir()
    assert engine.image_command_problem() is None


@pytest.mark.parametrize(
    ("hyperparameters", "expected"),
    [
        ({}, False),
        ({"sagemaker_torch_distributed_enabled": "true"}, False),
        ({"sagemaker_mpi_enabled": "true"}, True),
        ({"sagemaker_mpi_enabled": "false"}, False),
        ({"sagemaker_distributed_dataparallel_enabled": "True"}, True),
        ({"mp_parameters": '{"partitions": 2}'}, True),
        ({"mp_parameters": "{}"}, False),
    ],
)
def test_only_jobs_launched_over_ssh_may_run_sshd(engine, job, hyperparameters, expected):
    job = replace(job, hyperparameters=hyperparameters)
    assert launched_over_ssh(job) == expected
    _, plan = options(engine, job)
    assert ("--cap-add=SYS_CHROOT" in plan.options) == expected


def test_nodes_find_their_own_files_at_opt_ml(engine, job):
    job = replace(
        job, instance_count=2, checkpoint_config={"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/saved"}
    )
    nodes, plan = options(engine, job)
    assert [node.address for node in nodes] == ["10.1.2.11", "10.1.2.12"]
    assert {"--add-host=algo-1:10.1.2.11", "--add-host=algo-2:10.1.2.12"} <= set(plan.options)
    config = nodes[1].opt_ml / "input" / "config"
    resources = json.loads((config / "resourceconfig.json").read_text())
    assert (resources["current_host"], resources["hosts"]) == ("algo-2", ["algo-1", "algo-2"])
    assert resources["network_interface_name"] == "eth0"
    assert (
        json.loads((config / "checkpointconfig.json").read_text())["LocalPath"] == "/opt/ml/saved"
    )
    mounted = {
        option.partition("=")[2].partition(":")[2]
        for option in plan.options
        if option.startswith("--volume")
    }
    assert mounted == {
        f"/opt/ml/{name}" for name in ("checkpoints", "input", "model", "output")
    } | {"/run/nodesweep"}


def sources(plan):
    mounts = [option for option in plan.options if re.match(r"--?(v|mount|device)", option)]
    return {Path(mount.partition("=")[2].partition(":")[0]) for mount in mounts}


def test_a_node_has_no_folder_of_the_machine_but_its_jobs_and_its_file_systems(
    engine, job, tmp_path
):
    nodes, plan = options(engine, job)
    own = nodes[0].opt_ml.parent
    assert sources(plan) and all(one.is_relative_to(own) for one in sources(plan))
    (nodes[0].opt_ml / "input" / "data" / "corpus").mkdir(parents=True)
    channel = {"ChannelName": "corpus", "DataSource": {"FileSystemDataSource": {
        "FileSystemId": "fs-0123456789abcdef0", "DirectoryPath": "/corpus"}}}  # fmt: skip
    shared = tmp_path / "shared"
    (shared / "corpus").mkdir(parents=True)
    [node, *_] = mount_channels([channel], nodes, {"fs-0123456789abcdef0": shared})
    seen = engine._plan(job, node, nodes, ImageConfig((), {}), 1)
    assert f"--volume={shared / 'corpus'}:/opt/ml/input/data/corpus" in seen.options
    assert sources(seen) - sources(plan) == {shared / "corpus"}
    place = node.opt_ml / "input" / "data" / "corpus"
    assert place.is_dir() and not place.is_symlink()


def test_rate_between_nodes_is_described_and_refused_limits_are_the_platforms_fault(engine, job):
    engine._links = ContainerLinks(None, "no netem")
    assert engine.isolation("ml.local.small") == (
        "0.2 vCPU and 2 GiB per node by podman containers, 1 Gbit/s between nodes (without a delay:"
        " no netem)"
    )
    running = SimpleNamespace(pid_by_host={"algo-1": 2**31 - 1})
    with pytest.raises(EngineError, match="network links can't be limited: ip: "):
        engine._limit_links(job, running)


def test_network_that_is_too_small_is_refused():
    with pytest.raises(EngineError, match=r"10\.1\.2\.0/29 .* 4 nodes"):
        container_engine._addresses({"subnets": [{"subnet": "10.1.2.0/29"}]}, 4)


def test_dockers_description_of_a_network_is_read_too():
    assert container_engine._addresses({"IPAM": {"Config": [{"Subnet": "172.18.0.0/16"}]}}, 1) == [
        "172.18.0.11"
    ]


def test_environment_keeps_every_value():
    values = {"PLAIN": "a", "LINES": "one\ntwo", "QUOTES": 'it\'s $HOME `date` "x"', "EMPTY": ""}
    script = environment_script(values) + "env -0"
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    seen = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    assert {name: seen[name] for name in values} == values


@pytest.mark.parametrize(
    ("code", "expected"), [(1, 1), (127, 127), (137, -9), (192, -64), (193, 193), (255, 255)]
)
def test_only_codes_of_signals_are_signals(code, expected):
    assert as_of_subprocess(code) == expected


def test_start_removes_what_a_killed_predecessor_left(engine):
    assert engine._cli.calls[0] == ("remove", f"nodesweep.state={engine._state_id}")


def turn(engine, job, seconds=0.1, waits=None):
    told = [].append if waits is None else waits.append
    return engine._turn(
        job, threading.Event(), time.monotonic() + seconds, lambda: told(job.job_name)
    )


def test_jobs_have_their_turn_at_once_where_they_fit(engine, job):
    waits = []
    two, three = replace(job, job_name="job-b"), replace(job, job_name="job-c", instance_count=9)
    with (
        turn(engine, job) as first,
        turn(engine, two) as second,
        turn(engine, three, waits=waits) as third,
    ):
        assert (first, second, third, waits) == (True, True, False, ["job-c"])
        assert "job-c" not in engine.room
    with turn(engine, three) as alone:
        assert alone
    assert not {"job-a", "job-b", "job-c"} & set(engine.room._shares)


def test_other_engines_job_is_waited_for_and_keeps_no_room(engine, job, tmp_path):
    address = f"\0test-{tmp_path}"
    with (
        training_slot(threading.Event(), time.monotonic() + 1, lambda: None, address),
        turn(engine, job) as is_held,
    ):
        assert not is_held
        assert job.job_name not in engine.room
    with (
        turn(engine, job) as is_held,
        training_slot(threading.Event(), time.monotonic() + 0.1, lambda: None, address) as other,
    ):
        assert (is_held, other) == (True, False)


def test_room_that_the_queue_took_stays_the_jobs(engine, job):
    assert engine.room.take(job.job_name, job.instance_type, 1)
    with turn(engine, job) as is_held:
        assert is_held
    assert job.job_name in engine.room


@pytest.mark.parametrize(
    ("version", "quota_file", "weight_file", "weights"),
    [
        (1, "cpu.cfs_quota_us", "cpu.shares", ["65536", "2"]),
        (2, "cpu.max", "cpu.weight", ["6400", "1"]),
    ],
)
def test_node_gives_way_to_other_jobs_while_it_has_no_quota(
    tmp_path, version, quota_file, weight_file, weights
):
    quotas = YieldingQuotas(version, tmp_path)
    group = tmp_path / "container"
    group.mkdir()
    quotas.apply(group, 0.2)
    assert (group / quota_file).read_text().split()[0] == "4000"
    assert (group / weight_file).read_text() == weights[0]
    quotas.lift(group)
    assert (group / quota_file).read_text() in ("-1", "max")
    assert (group / weight_file).read_text() == weights[1]
    assert not (tmp_path / weight_file).exists(), "other people's containers are in it, too"
