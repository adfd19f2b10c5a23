"""The files of a job: one tree per node, laid out like /opt/ml, including configuration files.

<state>/jobs/<job>/<host>/ml       the node's /opt/ml (SAGEMAKER_BASE_DIR)
                          files    the image's other files, by absolute path
                          home     the node's HOME
                          python   packages of the job's requirements.txt (jobs that bring code)
                          opt      only during startup: this machine's /opt (host/containment.py)
                          boot     the boot barrier's `ready` and `go`
<state>/jobs/<job>/hosts           the nodes' /etc/hosts
                   resolv.conf     /etc/resolv.conf of nodes in separate networks
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sagemaker_emulator.engine.host.containment import hosts_text
from sagemaker_emulator.engine.host.network import Network, resolver_text
from sagemaker_emulator.interfaces import JobSpec, Node, ProcessingFiles
from sagemaker_emulator.node_tree import open_file
from sagemaker_emulator.state.files import write_atomically

GROUP_NAME = "homogeneousCluster"
CONTAINER_INTERFACE = "eth0"
READABLE = 0o644
"""Mode of files that a node's program must be able to read as any user."""
_MAX_FAILURE_BYTES = 16_384  # FailureReason holds 1,024; the rest helps find the root cause
_RESOLVER = Path("/etc/resolv.conf")
_FOLDERS = (
    "code",
    "model",
    "checkpoints",
    "input/config",
    "input/data",
    "output/data",
    "output/intermediate",
)


def state_id(state_dir: Path) -> str:
    """Return a digest of the state folder's path, which marks an engine's processes and cgroups."""
    return hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]


def job_folder(state_dir: Path, job_name: str) -> Path:
    """Return the folder with the files of a job."""
    return state_dir / "jobs" / job_name


def node_folder(node: Node) -> Path:
    """Return the folder with the files of a node, which is the parent of its /opt/ml."""
    return node.opt_ml.parent


def in_node(path: str, node: Node) -> str:
    """Map a path in /opt/ml or the image to the node's tree, and return other paths unchanged."""
    if _is_below_opt_ml(path):
        return f"{node.opt_ml}{path.removeprefix('/opt/ml')}"
    return in_image(path, node)


def in_image(path: str, node: Node) -> str:
    """Map a path in the image to the node's tree, and return other paths unchanged.

    Unlike in_node, this keeps paths in /opt/ml, which are valid in nodes with a private /opt/ml.
    """
    copied = node_folder(node) / "files" / path.strip("/")
    return str(copied) if path.startswith("/") and path.strip("/") and copied.exists() else path


def make_working_folder(path: str, node: Node) -> Path:
    """Create and return the folder that `path` maps to; if it maps to none, the node's home."""
    found = in_node(path, node)
    folder = node_folder(node) / "home" if found == path else Path(found)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _is_below_opt_ml(path: str) -> bool:
    return path == "/opt/ml" or path.startswith("/opt/ml/")


def loopback_block(state_dir: Path) -> int:
    """Return the block of loopback addresses for the nodes of an engine, 1 to 250.

    Two platforms on a machine usually get different blocks.
    """
    return int(state_id(state_dir), 16) % 250 + 1


def make_nodes(
    state_dir: Path, job: JobSpec, host_names: bool, image: Path, network: Network
) -> list[Node]:
    """Create the tree of every node, including the image's files, and return the nodes.

    With `host_names`, nodes use the names algo-n for each other, otherwise addresses.
    """
    folder = job_folder(state_dir, job.job_name)
    shutil.rmtree(folder, ignore_errors=True)
    nodes = [
        Node(f"algo-{i}", network.address(i), folder / f"algo-{i}" / "ml")
        for i in range(1, job.instance_count + 1)
    ]
    for node in nodes:
        _make_tree(
            job,
            node,
            nodes,
            host_names,
            interface=network.interface,
            opt_ml=in_node("/opt/ml", node),
        )
        if job.processing is None:
            shutil.copytree(image / "code", node.opt_ml / "code", dirs_exist_ok=True)
        if (image / "files").is_dir():
            shutil.copytree(image / "files", node_folder(node) / "files")
    texts = {"hosts": hosts_text({node.host: node.address for node in nodes})}
    if network.name_server is not None and _RESOLVER.is_file():
        texts["resolv.conf"] = resolver_text(network.name_server, _RESOLVER.read_text())
    for name, text in texts.items():
        write_atomically(folder / name, text, READABLE, is_durable=False)
    return nodes


def make_container_nodes(state_dir: Path, job: JobSpec, addresses: Sequence[str]) -> list[Node]:
    """Create the trees to mount at /opt/ml of containers, and return nodes with these addresses."""
    folder = job_folder(state_dir, job.job_name)
    shutil.rmtree(folder, ignore_errors=True)
    nodes = [
        Node(f"algo-{i}", address, folder / f"algo-{i}" / "ml")
        for i, address in enumerate(addresses, 1)
    ]
    for node in nodes:
        _make_tree(job, node, nodes, True, interface=CONTAINER_INTERFACE, opt_ml="/opt/ml")
    return nodes


def _make_tree(
    job: JobSpec, node: Node, nodes: Sequence[Node], host_names: bool, interface: str, opt_ml: str
) -> None:
    """Create a node's tree, where `opt_ml` is the path that the node's program uses for /opt/ml."""
    for name in ("home", "boot"):
        (node_folder(node) / name).mkdir(parents=True)
    resources = _resource_config(job, node, nodes, host_names, interface)
    if job.processing is not None:
        _make_processing_tree(job.processing, node, resources)
        return
    for name in _FOLDERS:
        (node.opt_ml / name).mkdir(parents=True)
    for channel in job.input_data_config:
        (node.opt_ml / "input" / "data" / channel["ChannelName"]).mkdir(exist_ok=True)
    config = node.opt_ml / "input" / "config"
    files: dict[str, Mapping[str, Any]] = {
        "hyperparameters.json": dict(job.hyperparameters),
        "resourceconfig.json": resources,
        "inputdataconfig.json": {
            channel["ChannelName"]: _channel_config(channel) for channel in job.input_data_config
        },
    }
    if job.checkpoint_config:
        path = job.checkpoint_config.get("LocalPath") or "/opt/ml/checkpoints"
        files["checkpointconfig.json"] = {
            "S3Uri": job.checkpoint_config["S3Uri"],
            "LocalPath": (
                f"{opt_ml}{path.removeprefix('/opt/ml')}" if _is_below_opt_ml(path) else path
            ),
        }
    _write_config(config, files)


def _make_processing_tree(
    processing: ProcessingFiles, node: Node, resources: Mapping[str, Any]
) -> None:
    for name in ("config", "output", "processing", *processing.folders):
        (node.opt_ml / name).mkdir(parents=True, exist_ok=True)
    files = {"resourceconfig.json": resources, "processingjobconfig.json": processing.config}
    _write_config(node.opt_ml / "config", files)


def _write_config(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    for file_name, content in files.items():
        text = json.dumps(content, indent=1)
        write_atomically(folder / file_name, text, READABLE, is_durable=False)


def _resource_config(
    job: JobSpec, node: Node, nodes: Sequence[Node], host_names: bool, interface: str
) -> dict[str, Any]:
    # lexicographic, as on AWS
    hosts = sorted(peer.host if host_names else peer.address for peer in nodes)
    return {
        "current_host": node.host if host_names else node.address,
        "current_instance_type": job.instance_type,
        "current_group_name": GROUP_NAME,
        "hosts": hosts,
        "instance_groups": [
            {"instance_group_name": GROUP_NAME, "instance_type": job.instance_type, "hosts": hosts}
        ],
        "network_interface_name": interface,
    }


def _channel_config(channel: Mapping[str, Any]) -> dict[str, str]:
    source = channel.get("DataSource", {}).get("S3DataSource", {})
    config = {
        "TrainingInputMode": channel.get("InputMode") or "File",
        "S3DistributionType": source.get("S3DataDistributionType") or "FullyReplicated",
        "RecordWrapperType": channel.get("RecordWrapperType") or "None",
    }
    if channel.get("ContentType"):
        config["ContentType"] = channel["ContentType"]
    return config


def failure_text(node: Node) -> str | None:
    """Return the text that the node wrote to output/failure, or None."""
    try:
        with open_file(node.opt_ml, "output/failure") as file:
            text = file.read(_MAX_FAILURE_BYTES).decode(errors="replace")
    except OSError:
        return None
    return text.strip() or None
