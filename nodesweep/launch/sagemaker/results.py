"""Read the metrics file of an ended training job from S3."""

from __future__ import annotations

import gzip
import io
import logging
import tarfile
import zlib
from collections.abc import Mapping
from typing import Any

from nodesweep.aws.platform import patient
from nodesweep.aws.storage import is_missing
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.logs import own_name
from nodesweep.scaling import names
from nodesweep.scaling.outcome.metrics_file import (
    BUDGET_FILE,
    MAX_BUDGET_BYTES,
    MAX_BUDGET_FILES,
    MAX_METRICS_BYTES,
    UnusableMetrics,
    parse_metrics,
)

logger = logging.getLogger("nodesweep.results")
_BLOCK_BYTES = 256 * 1024
_MAX_HEADER_BYTES = 256 * 1024
"""Maximum size of an archive member's headers, which tarfile holds in memory.

A path has at most 4,096 bytes.
"""
_MAX_UNPACKED_BYTES = 16 * 1024**3
"""Maximum unpacked bytes up to metrics.json, as a protection against archives of zeros.

Reading this many bytes takes minutes.
"""


def read_metrics(s3: Any, bucket: str, key: str) -> dict[str, Any] | None:
    """Return the metrics.json in a job's output.tar.gz, or None if it is missing or unusable.

    The archive is streamed rather than held in memory, because it may contain the whole model.
    """
    uri = f"s3://{bucket}/{key}"
    try:
        answer = s3.get_object(Bucket=bucket, Key=key)
    except s3.exceptions.ClientError as error:
        if is_missing(s3, bucket, key, error):
            return None
        raise
    try:
        content, budgets = _metrics_in(answer["Body"])
        metrics = None if content is None else parse_metrics(content, budgets)
    except UnusableMetrics as error:
        logger.warning("%s: %s; continuing without the program's metrics", uri, error)
        return None
    except (tarfile.TarError, EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
        logger.warning("%s contains no readable %s: %s", uri, names.METRICS_FILE, error)
        return None
    return metrics if isinstance(metrics, dict) else None


class _BoundedReader:
    """A stream that raises UnusableMetrics beyond `end`, which advances with each member."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._position = 0
        self.end = _MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes.

        Raises:
            UnusableMetrics: the position is beyond `end`.
        """
        if self._position > self.end:
            raise UnusableMetrics(
                f"the tar headers of a file exceed {_MAX_HEADER_BYTES} bytes, so it is not read"
                " further"
            )
        data = self._stream.read(size)
        self._position += len(data)
        return data


def _metrics_in(archive: Any) -> tuple[bytes | None, list[bytes]]:
    """Return the metrics.json nearest to the archive's root, if any, and the other ranks' files."""
    budgets: list[bytes] = []
    found: tuple[int, bytes | UnusableMetrics] | None = None
    unpacked_bytes = 0
    # gzip reads the header byte by byte, and each read of the body has a thread for its deadline.
    unpacked: Any = _BoundedReader(gzip.GzipFile(fileobj=io.BufferedReader(archive, _BLOCK_BYTES)))
    with tarfile.open(fileobj=unpacked, mode="r|") as tar:
        for member in tar:
            # The map of a sparse file's holes is unbounded, and its size differs from its data's.
            if member.issparse():
                raise UnusableMetrics(f"its {member.name} is a sparse file, which is not supported")
            unpacked.end = member.offset_data + member.size + _MAX_HEADER_BYTES
            unpacked_bytes += member.size
            if unpacked_bytes > _MAX_UNPACKED_BYTES:
                if found:
                    break
                raise UnusableMetrics(
                    f"it unpacks to more than {_MAX_UNPACKED_BYTES} bytes, so it is not read"
                    " further"
                )
            if (
                member.isfile()
                and BUDGET_FILE.fullmatch(member.name.removeprefix("./"))
                and member.size <= MAX_BUDGET_BYTES
                and len(budgets) < MAX_BUDGET_FILES
            ):
                stream = tar.extractfile(member)
                budgets.append(stream.read() if stream else b"")
            depth = member.name.count("/")
            if not member.isfile() or member.name.split("/")[-1] != names.METRICS_FILE:
                continue
            if found is None or depth < found[0]:
                if member.size > MAX_METRICS_BYTES:
                    problem = (
                        f"its {member.name} has {member.size} bytes, more than {MAX_METRICS_BYTES}"
                    )
                    found = (depth, UnusableMetrics(problem))
                    continue
                stream = tar.extractfile(member)
                found = (depth, stream.read() if stream else b"")
    content = found[1] if found else None
    if isinstance(content, UnusableMetrics):
        raise content
    return content, budgets


@patient
def read_job_metrics(backend: Backend, sweep: str, job_name: str) -> Mapping[str, Any] | None:
    """Read the job's metrics.json from S3."""
    platform = backend.platform
    key = names.job_output_key(platform.prefix, sweep, own_name(backend, job_name))
    return read_metrics(backend.client("s3"), platform.bucket, key)
