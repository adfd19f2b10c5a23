"""The process engine, which runs nodes as process trees with a private /opt/ml and a CPU quota."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sagemaker_emulator.engine.errors import EngineError, ImageNotFoundError
from sagemaker_emulator.engine.host import capacity
from sagemaker_emulator.engine.host.cgroups import CpuQuotas
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.host.network import find_network
from sagemaker_emulator.engine.host.process_tree import (
    MARKER_NODE,
    MARKER_STATE,
    Membership,
    kill_all,
)
from sagemaker_emulator.engine.process.job_supervisor import NodePlan
from sagemaker_emulator.engine.process.supervised_nodes import SupervisedNodes
from sagemaker_emulator.engine.run.exclusive_engine import ExclusiveEngine
from sagemaker_emulator.engine.run.job_run import JobRun, Quota, RunTimes
from sagemaker_emulator.engine.run.node_environment import (
    barrier_folder,
    node_command,
    node_environment,
    uses_boot_barrier,
)
from sagemaker_emulator.engine.run.node_files import (
    job_folder,
    loopback_block,
    make_nodes,
    make_working_folder,
)
from sagemaker_emulator.interfaces import (
    AccessKey,
    ImageStore,
    JobSpec,
    LineSink,
    Node,
    RunResult,
)

_SWEEP_SECONDS = 10.0


class ProcessEngine(ExclusiveEngine):
    """Runs the nodes of one job at a time as processes.

    See `sagemaker_emulator.interfaces.Engine`.
    """

    def __init__(
        self,
        state_dir: Path,
        images: ImageStore,
        endpoint_url: str,
        node_key: AccessKey | None = None,
        times: RunTimes | None = None,
    ) -> None:
        """Lock the state folder, and kill processes that a killed engine left running."""
        super().__init__(state_dir, endpoint_url, node_key, times)
        self._images = images
        self._containment = Containment.find(self._state_dir)
        self._network = find_network(
            loopback_block(self._state_dir),
            None if self._containment.has_host_names else self._containment.opt_ml_problem,
        )
        self._quotas, self._quota_reason = CpuQuotas.find(f"nodesweep-{self._state_id}")
        self._end_leftovers()

    def command_problem(self, entrypoint: Sequence[str], arguments: Sequence[str]) -> str | None:
        """Return why the entry point and arguments of a request cannot be used, or None.

        The program of an entry point expects its files at /opt/ml, so nodes need a private /opt/ml.
        """
        problem = self._containment.opt_ml_problem
        if entrypoint and problem:
            return (
                "ContainerEntrypoint: its program expects its files at /opt/ml, but process nodes"
                f" have no private /opt/ml here ({problem}). Start the local platform as root,"
                " allow user namespaces for your user, or start it with --engine container."
            )
        if arguments and not entrypoint:
            return (
                "ContainerArguments: process nodes have no image entry point to receive the"
                " arguments. Set ContainerEntrypoint too, or start the local platform with"
                " --engine container."
            )
        return None

    def image_command_problem(self) -> str | None:
        """Return that the entry point of an image cannot be used, since images only have an ENV."""
        return (
            "ContainerEntrypoint: process nodes have no image entry point. Set"
            " ContainerEntrypoint, or start the local platform with --engine container."
        )

    def isolation(self, instance_type: str) -> str:
        """Return a short description of the nodes' CPU quota and network.

        Examples: "0.2 vCPU per node by cgroup v1 quota, 1 Gbit/s between nodes in networks of their
        own", or "… by duty cycle (reason), over loopback (reason)" if these are unavailable.
        """
        vcpus = capacity.VCPUS_BY_INSTANCE_TYPE.get(instance_type)
        if vcpus is None:
            return f"not isolated (unknown instance type {instance_type})"
        way = self._quota_reason
        if self._quotas is None:
            way = f"duty cycle ({self._quota_reason})"
        return f"{vcpus:g} vCPU per node by {way}, {self._network.describe(instance_type)}"

    def prepare(self, job: JobSpec) -> Sequence[Node]:
        """Create the nodes' /opt/ml trees, with input/config/*.json and empty channel folders."""
        return make_nodes(
            self._state_dir,
            job,
            self._containment.has_host_names,
            self._image(job),
            self._network,
        )

    def clean_up(self, job: JobSpec) -> None:
        """Remove the nodes' trees. This is idempotent."""
        shutil.rmtree(job_folder(self._state_dir, job.job_name), ignore_errors=True)

    def _run_alone(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        image_environment = read_image_environment(self._image(job))
        boot_folders = None
        if uses_boot_barrier(job, image_environment):
            boot_folders = {node.host: barrier_folder(node) for node in nodes}
        quota = self._make_quota(job, nodes)
        if boot_folders is None and quota.group_by_host:
            quota.apply()  # before they start
        plans = [self._plan(job, node, image_environment, quota) for node in nodes]
        network = self._network.plan(
            job.instance_type,
            {node.host: node.address for node in nodes},
            [plan["environment"] for plan in plans],
            {MARKER_STATE: self._state_id, MARKER_NODE: f"{job.job_name}/network"},
        )
        try:
            # kill_node() must find the nodes even before they start, since their first log line can
            # trigger a fault.
            supervised = SupervisedNodes(self._state_id, job.job_name, plans, on_line, network)
            self._live[job.job_name] = supervised
            with supervised:
                if not quota.group_by_host:
                    quota = replace(quota, limit=supervised.limit)
                    if boot_folders is None:
                        quota.apply()
                run = JobRun(
                    nodes,
                    supervised,
                    on_line,
                    stop,
                    max_runtime_seconds,
                    quota=quota,
                    boot_folders=boot_folders,
                    times=self._times,
                )
                return run.until_all_ended()
        finally:
            self._live.pop(job.job_name, None)
            for group in quota.group_by_host.values():
                if self._quotas:
                    self._quotas.remove(group)

    def _make_quota(self, job: JobSpec, nodes: Sequence[Node]) -> Quota:
        groups = {}
        if self._quotas:
            groups = {
                node.host: self._quotas.create(f"{job.job_name}.{node.host}") for node in nodes
            }
        hosts = [node.host for node in nodes]
        cpus = dict(zip(hosts, capacity.assign_cpus(len(nodes)), strict=True))
        return Quota(self._quotas, groups, self._vcpus(job), cpus)

    def _plan(
        self, job: JobSpec, node: Node, image_environment: Mapping[str, str], quota: Quota
    ) -> NodePlan:
        image = self._image(job)
        environment = node_environment(
            job,
            node,
            image,
            image_environment,
            vcpus=self._vcpus(job),
            endpoint_url=self._endpoint_url,
            access_key=self._node_key,
            state_id=self._state_id,
        )
        hosts_file = job_folder(self._state_dir, job.job_name) / "hosts"
        command = node_command(job, node, image)
        return {
            "host": node.host,
            "argv": self._containment.wrap(command, node.host, hosts_file, node.opt_ml),
            "environment": environment,
            "folder": str(make_working_folder(read_image(image).get("folder", "/"), node)),
            "cgroup": str(quota.group_by_host[node.host]) if quota.group_by_host else None,
            "cpu": quota.cpu_by_host[node.host],
        }

    def _image(self, job: JobSpec) -> Path:
        image = self._images.resolve(job.image_uri)
        if image is None:
            raise ImageNotFoundError(
                f"image {job.image_uri} is not in the image store of this platform; build it first"
            )
        return image

    def _end_leftovers(self) -> None:
        """Kill this state folder's processes; the lock proves that no other engine uses them."""
        groups = self._quotas.groups() if self._quotas else []
        left = kill_all(Membership(state_id=self._state_id, cgroups=tuple(groups)), _SWEEP_SECONDS)
        if left:
            raise EngineError(
                f"processes {', '.join(map(str, sorted(left)))} of an earlier platform can't be"
                " killed; stop them manually"
            )
        for group in groups:
            if self._quotas:
                self._quotas.remove(group)


def read_image_environment(image: Path) -> dict[str, str]:
    """Return the ENV of a stored image."""
    return {str(name): str(value) for name, value in read_image(image)["environment"].items()}


def read_image(image: Path) -> dict[str, Any]:
    """Return the record (image.json) of a stored image."""
    record: dict[str, Any] = json.loads((image / "image.json").read_text())
    return record
