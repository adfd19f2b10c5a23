"""Downloads the S3 channels of a training job to the nodes' input/data/<channel> folders."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs.downloads import Download, fill_folders
from sagemaker_emulator.s3_objects import S3_ERRORS, S3Location, error_message, list_keys


def fill_channels(
    s3: Any, channels: Sequence[Mapping[str, Any]], nodes: Sequence[Node], stop: threading.Event
) -> None:
    """Download the S3 channels to the nodes' folders, and skip other channels."""
    downloads = [
        Download(channel["DataSource"]["S3DataSource"], f"input/data/{channel['ChannelName']}")
        for channel in channels
        if "S3DataSource" in channel["DataSource"]
    ]
    fill_folders(s3, downloads, nodes, stop)


def missing_data_reason(s3: Any, channel: Mapping[str, Any]) -> str | None:
    """Return the error message, "" if no object matches, or None if the channel has data."""
    source = channel["DataSource"]["S3DataSource"]
    try:
        found = next(list_keys(s3, S3Location.parse(source["S3Uri"]), page_size=10), None)
    except S3_ERRORS as error:
        return error_message(error)
    return None if found is not None else ""
