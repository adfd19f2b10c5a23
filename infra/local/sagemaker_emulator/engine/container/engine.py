"""The container engine, which runs the nodes of a job as containers in a separate network.

The engine only touches containers and networks that are labeled with its state folder. When the
server ends, even if it is killed, a reaper process removes them, and the next start removes any
that remain.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sagemaker_emulator.engine.container.cli import ContainerCli
from sagemaker_emulator.engine.container.images import ContainerImageStore, ImageConfig
from sagemaker_emulator.engine.container.nodes import (
    ENVIRONMENT_FILE,
    NODE_FOLDER,
    ContainerNodes,
    ContainerPlan,
    environment_script,
)
from sagemaker_emulator.engine.container.quota import LEAST_SHARES, YieldingQuotas
from sagemaker_emulator.engine.errors import EngineError
from sagemaker_emulator.engine.host import capacity
from sagemaker_emulator.engine.host.link import LinkError
from sagemaker_emulator.engine.host.network import ContainerLinks
from sagemaker_emulator.engine.host.port_lock import SharedSlot, wait_for
from sagemaker_emulator.engine.host.room import Room
from sagemaker_emulator.engine.run.exclusive_engine import ExclusiveEngine
from sagemaker_emulator.engine.run.job_run import JobRun, Quota, RunTimes
from sagemaker_emulator.engine.run.node_environment import (
    barrier_folder,
    container_command,
    container_environment,
    uses_boot_barrier,
)
from sagemaker_emulator.engine.run.node_files import READABLE, job_folder, make_container_nodes
from sagemaker_emulator.environment import IMPORT_ROOT
from sagemaker_emulator.interfaces import AccessKey, JobSpec, LineSink, Node, RunResult
from sagemaker_emulator.state.files import write_atomically

_STATE_LABEL, _OWNER_LABEL = "nodesweep.state", "nodesweep.owner"
_FIRST_ADDRESS = 11
_SHARED_MEMORY = "1g"  # for data loader workers and Open MPI; the default of 64 MiB is too small
_PIDS = 4096
_LAUNCHED_OVER_SSH = (
    "sagemaker_mpi_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "mp_parameters",
)
_SSHD_CAPABILITIES = ("SETUID", "SETGID", "SYS_CHROOT", "NET_BIND_SERVICE", "AUDIT_WRITE")
"""Capabilities that sshd needs to listen on port 22 and to log in root."""


class ContainerEngine(ExclusiveEngine):
    """Runs nodes as containers, and several jobs in parallel if they fit.

    See `sagemaker_emulator.interfaces.Engine`. `room` tracks the capacity that running jobs leave
    free. A job without a reservation waits for one before its turn.
    """

    def __init__(
        self,
        state_dir: Path,
        images: ContainerImageStore,
        cli: ContainerCli,
        endpoint_url: str,
        node_key: AccessKey | None = None,
        times: RunTimes | None = None,
    ) -> None:
        """Lock the state folder, and remove containers and networks that a killed engine left."""
        super().__init__(state_dir, endpoint_url, node_key, times)
        self.room = Room.of_this_machine()
        self._slot = SharedSlot()
        self._images = images
        self._cli = cli
        self._links = ContainerLinks.find()
        self._cli.remove_labelled(f"{_STATE_LABEL}={self._state_id}")
        self._owner = f"{self._state_id}-{os.getpid()}-{time.monotonic_ns()}"
        self._reaper = self._start_reaper()

    def close(self) -> None:
        """Remove remaining containers and networks, and release the state folder.

        This also happens when the process ends.
        """
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait()
        super().close()

    def isolation(self, instance_type: str) -> str:
        """Return a short description of the nodes' limits.

        Example: "0.2 vCPU and 2 GiB per node by podman containers, 1 Gbit/s between nodes".
        """
        vcpus = capacity.VCPUS_BY_INSTANCE_TYPE.get(instance_type)
        if vcpus is None:
            return f"not isolated (unknown instance type {instance_type})"
        gibibytes = capacity.MEMORY_BYTES_BY_INSTANCE_TYPE[instance_type] / 2**30
        limits = f"{vcpus:g} vCPU and {gibibytes:g} GiB per node by {self._cli.name} containers"
        return f"{limits}, {self._links.describe(instance_type)}"

    def prepare(self, job: JobSpec) -> Sequence[Node]:
        """Create the job's network and the nodes' /opt/ml trees, including input/config/*.json."""
        network = self._network(job)
        self._remove(job)
        labels = [f"--label={name}={value}" for name, value in self._labels(job).items()]
        # Host names are in /etc/hosts, so disable podman's name server, which would log a warning
        # about missing syslog in every node.
        without_dns = ["--disable-dns"] if self._cli.name == "podman" else []
        self._cli.call("network", "create", *without_dns, *labels, network)
        addresses = _addresses(
            json.loads(self._cli.call("network", "inspect", network))[0], job.instance_count
        )
        return make_container_nodes(self._state_dir, job, addresses)

    def clean_up(self, job: JobSpec) -> None:
        """Remove the nodes' trees and network. This is idempotent."""
        shutil.rmtree(job_folder(self._state_dir, job.job_name), ignore_errors=True)
        self._remove(job)

    @contextlib.contextmanager
    def _turn(
        self, job: JobSpec, stop: threading.Event, deadline: float, on_wait: Callable[[], None]
    ) -> Iterator[bool]:
        """Wait for capacity on this machine and hold it for the job.

        Jobs of an engine run in parallel if they fit, but jobs of different engines never do.
        """
        has_room = job.job_name in self.room

        def take() -> bool:
            if not has_room and not self.room.take(
                job.job_name, job.instance_type, job.instance_count
            ):
                return False
            if self._slot.take():
                return True
            if not has_room:
                self.room.release(job.job_name)
            return False

        is_held = wait_for(take, stop, deadline, on_wait)
        try:
            yield is_held
        finally:
            if is_held:
                self._slot.release()
                if not has_room:
                    self.room.release(job.job_name)

    def _run_alone(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        image = self._images.pull(job.image_uri)
        waits = uses_boot_barrier(job, image.environment)
        vcpus = self._vcpus(job)
        boot_folder = NODE_FOLDER if waits else None
        environment = container_environment(
            job, vcpus, self._endpoint_url, self._node_key, boot_folder
        )
        for node in nodes:
            write_atomically(
                barrier_folder(node) / ENVIRONMENT_FILE, environment_script(environment), READABLE
            )
        cpus = self.room.cpus(job.job_name)
        plans = [
            self._plan(job, node, nodes, image, cpu) for node, cpu in zip(nodes, cpus, strict=True)
        ]
        port = urlsplit(self._endpoint_url).port
        assert port is not None
        with ContainerNodes(self._cli, plans, port, on_line) as running:
            self._live[job.job_name] = running
            try:
                self._limit_links(job, running)
                quota = _quota(
                    running, vcpus, {node.host: cpu for node, cpu in zip(nodes, cpus, strict=True)}
                )
                if quota and not waits:
                    quota.apply()
                folders = {node.host: barrier_folder(node) for node in nodes} if waits else None
                running.release()
                run = JobRun(
                    nodes,
                    running,
                    on_line,
                    stop,
                    max_runtime_seconds,
                    quota=quota,
                    boot_folders=folders,
                    times=self._times,
                )
                return run.until_all_ended()
            finally:
                self._live.pop(job.job_name, None)

    def _limit_links(self, job: JobSpec, running: ContainerNodes) -> None:
        try:
            self._links.limit(job.instance_type, running.pid_by_host.values())
        except LinkError as error:
            raise EngineError(f"the nodes' network links can't be limited: {error}") from error

    def _plan(
        self, job: JobSpec, node: Node, nodes: Sequence[Node], image: ImageConfig, cpu: int
    ) -> ContainerPlan:
        memory = capacity.MEMORY_BYTES_BY_INSTANCE_TYPE[job.instance_type]
        options = ["--network", self._network(job), "--ip", node.address, "--hostname", node.host]
        options += [f"--add-host={peer.host}:{peer.address}" for peer in nodes]
        options += [f"--memory={memory}", f"--memory-swap={memory}", f"--shm-size={_SHARED_MEMORY}"]
        options += [f"--pids-limit={_PIDS}", f"--cpu-shares={LEAST_SHARES}", f"--cpuset-cpus={cpu}"]
        options += ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--log-driver=none"]
        options += [
            f"--cap-add={name}" for name in (_SSHD_CAPABILITIES if launched_over_ssh(job) else ())
        ]
        options += [f"--label={name}={value}" for name, value in self._labels(job).items()]
        if self._cli.name == "podman":
            options += ["--http-proxy=false", "--pull=never"]
        # All folders of /opt/ml except code, which comes from the image.
        folders = sorted(
            path for path in node.opt_ml.iterdir() if path.is_dir() and path.name != "code"
        )
        options += [f"--volume={folder}:/opt/ml/{folder.name}" for folder in folders]
        for channel, folder in node.file_systems:
            (node.opt_ml / "input" / "data" / channel).unlink()  # would dangle in the container
            (node.opt_ml / "input" / "data" / channel).mkdir()
            options += [f"--volume={folder}:/opt/ml/input/data/{channel}"]
        options += [f"--volume={barrier_folder(node)}:{NODE_FOLDER}"]
        name = f"{self._network(job)}-{node.host}"
        return ContainerPlan(
            host=node.host,
            name=name,
            options=options,
            image=job.image_uri,
            command=container_command(job, image.entrypoint, image.command),
            folder=node.opt_ml.parent,
        )

    def _labels(self, job: JobSpec) -> dict[str, str]:
        return {
            _STATE_LABEL: self._state_id,
            _OWNER_LABEL: self._owner,
            "nodesweep.job": self._network(job),
        }

    def _network(self, job: JobSpec) -> str:
        return f"nodesweep-{self._state_id}-{job.job_name}"

    def _remove(self, job: JobSpec) -> None:
        self._cli.remove_labelled(f"nodesweep.job={self._network(job)}")

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        label = f"{_OWNER_LABEL}={self._owner}"
        code = (
            f"import sys; sys.path.append({IMPORT_ROOT!r}); sys.stdin.buffer.read()\nfrom"
            " sagemaker_emulator.engine.container.cli import"
            f" ContainerCli\nContainerCli({self._cli.program!r},"
            f" {self._cli.environment!r}).remove_labelled({label!r})"
        )
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def launched_over_ssh(job: JobSpec) -> bool:
    """Return True if the toolkit launches this job with mpirun, which uses ssh between nodes."""
    return any(
        job.hyperparameters.get(name, "false").strip('"').lower() not in ("false", "", "{}", "null")
        for name in _LAUNCHED_OVER_SSH
    )


def _addresses(network: Mapping[str, Any], count: int) -> list[str]:
    """Return the addresses of the nodes in a network, given podman's or docker's description of it.

    Raises:
        EngineError: If the network has too few addresses.
    """
    import ipaddress

    subnets = network.get("subnets") or network.get("IPAM", {}).get("Config") or []
    subnet = ipaddress.ip_network(
        next(iter(subnets[0][key] for key in ("subnet", "Subnet") if key in subnets[0]))
    )
    if _FIRST_ADDRESS + count >= subnet.num_addresses:
        raise EngineError(f"the network {subnet} has too few addresses for {count} nodes")
    return [str(subnet[_FIRST_ADDRESS + index]) for index in range(count)]


def _quota(running: ContainerNodes, vcpus: float, cpus: Mapping[str, int]) -> Quota | None:
    groups = running.quota_groups()
    if len(groups) < len(running.pid_by_host):
        return None
    version, first = next(iter(groups.values()))
    if not os.access(first, os.W_OK):
        return None
    by_host = {host: group for host, (_, group) in groups.items()}
    return Quota(YieldingQuotas(version, first.parent), by_host, vcpus, cpus)
