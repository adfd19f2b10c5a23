"""Mounts FSx for Lustre and EFS channels, whose file systems are folders on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs.downloads import DataDownloadError


def source_of(channel: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the FileSystemDataSource of a channel, or None for other channels."""
    source: Mapping[str, str] | None = channel["DataSource"].get("FileSystemDataSource")
    return source


def mount_channels(
    channels: Sequence[Mapping[str, Any]], nodes: Sequence[Node], file_systems: Mapping[str, Path]
) -> list[Node]:
    """Link input/data/<channel> of every node to a folder in the file system.

    Programs may write to the folder, regardless of the channel's access mode. The folder that is
    configured for a file system is its root, so DirectoryPath /fsx/data is the subfolder fsx/data.

    Returns:
        Copies of the nodes with their mounted file systems.

    Raises:
        DataDownloadError: If a file system id is unknown or a path does not exist.
    """
    mounted: list[tuple[str, Path]] = []
    for channel in channels:
        source = source_of(channel)
        if source is None:
            continue
        folder = _folder(source, file_systems)
        mounted.append((channel["ChannelName"], folder))
        for node in nodes:
            place = node.opt_ml / "input" / "data" / channel["ChannelName"]
            place.rmdir()
            place.symlink_to(folder)
    return [replace(node, file_systems=tuple(mounted)) for node in nodes]


def _folder(source: Mapping[str, str], file_systems: Mapping[str, Path]) -> Path:
    name, path = source["FileSystemId"], source["DirectoryPath"]
    problem = f"Unable to mount file system: {name} directory path: {path}."
    root = file_systems.get(name)
    if root is None:
        known = ", ".join(sorted(file_systems)) or "none"
        raise DataDownloadError(
            f"{problem} File system id is invalid; configured file systems: {known}."
        )
    folder = (root / PurePosixPath(path.lstrip("/"))).resolve()
    if not folder.is_dir() or not folder.is_relative_to(root.resolve()):
        raise DataDownloadError(
            f"{problem} Incorrect mount path. Please ensure that the mount path specified exists on"
            " the filesystem."
        )
    return folder
