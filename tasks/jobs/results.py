"""What a finished job left behind in S3: the metrics file of its program."""

from __future__ import annotations

import gzip
import json
import logging
import tarfile
import zlib
from collections.abc import Mapping
from typing import Any

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.tasks.platform import aws_client, patient
from nodesweep.tasks.storage import is_missing

logger = logging.getLogger("nodesweep.results")
_MAX_METRICS_BYTES = 8 * 1024 * 1024
"""Of metrics.json: the shipped program keeps 1,000 step times, tens of KB; JSON in memory is a
multiple of its size.
"""
_MAX_HEADER_BYTES = 256 * 1024
"""Of what describes one member of the archive; tarfile keeps all of it in memory before it returns
the member. A path has at most 4,096 bytes.
"""
_MAX_METRICS_DEPTH = 32
_MAX_UNPACKED_BYTES = 16 * 1024**3
"""Of the archive, up to where metrics.json lies in it: minutes of reading,
and a stop for one of zeros.
"""
_TOO_DEEP = f"its {names.METRICS_FILE} is nested more than {_MAX_METRICS_DEPTH} deep"


def read_metrics(s3: Any, bucket: str, key: str) -> dict[str, Any] | None:
    """metrics.json out of a job's output.tar.gz;
    None where the program wrote none, or none that can be used.

    The archive is read as a stream and never held: a job may put its whole model into it.
    """
    uri = f"s3://{bucket}/{key}"
    try:
        answer = s3.get_object(Bucket=bucket, Key=key)
    except s3.exceptions.ClientError as error:
        if is_missing(s3, bucket, key, error):
            return None
        raise
    try:
        metrics = _parse_metrics(_metrics_in(answer["Body"]))
    except _Unusable as error:
        logger.warning("%s: %s; the job counts without the metrics of its program", uri, error)
        return None
    except (tarfile.TarError, EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
        logger.warning("%s holds no readable %s: %s", uri, names.METRICS_FILE, error)
        return None
    return metrics if isinstance(metrics, dict) else None


class _Unusable(Exception):
    """What a program wrote is beyond a limit; the message says which."""


class _BoundedReader:
    """A stream that raises _Unusable beyond `end`, which moves on with each member."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._position = 0
        self.end = _MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        if self._position > self.end:
            raise _Unusable(
                "it describes a file in more than"
                f" {_MAX_HEADER_BYTES} bytes of tar headers, and is read no further"
            )
        data = self._stream.read(size)
        self._position += len(data)
        return data


def _metrics_in(archive: Any) -> bytes | None:
    """The content of the metrics.json that is nearest to the archive's root, None without one."""
    found: tuple[int, bytes | _Unusable] | None = None
    unpacked_bytes = 0
    unpacked: Any = _BoundedReader(gzip.GzipFile(fileobj=archive))
    with tarfile.open(fileobj=unpacked, mode="r|") as tar:
        for member in tar:
            if member.issparse():  # its map of holes has no limit, and its size is not what follows
                raise _Unusable(f"its {member.name} is a sparse file, which is not read")
            unpacked.end = member.offset_data + member.size + _MAX_HEADER_BYTES
            unpacked_bytes += member.size
            if unpacked_bytes > _MAX_UNPACKED_BYTES:
                if found:
                    break
                raise _Unusable(
                    f"it unpacks to more than {_MAX_UNPACKED_BYTES} bytes, and is read no further"
                )
            depth = member.name.count("/")
            if not member.isfile() or member.name.split("/")[-1] != names.METRICS_FILE:
                continue
            if found is None or depth < found[0]:
                if member.size > _MAX_METRICS_BYTES:
                    said = (
                        f"its {member.name} has {member.size} bytes,"
                        f" {_MAX_METRICS_BYTES} are read at most"
                    )
                    found = (depth, _Unusable(said))
                    continue
                stream = tar.extractfile(member)
                found = (depth, stream.read() if stream else b"")
    content = found[1] if found else None
    if isinstance(content, _Unusable):
        raise content
    return content


def _parse_metrics(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        metrics = json.loads(content)
    except RecursionError:
        raise _Unusable(_TOO_DEEP) from None
    level, depth = [metrics], 0
    while level:  # what is parsed is written out again by code that recurses
        depth += 1
        if depth > _MAX_METRICS_DEPTH:
            raise _Unusable(_TOO_DEEP)
        lists = [
            value if isinstance(value, list) else value.values()
            for value in level
            if isinstance(value, dict | list)
        ]
        level = [value for values in lists for value in values if isinstance(value, dict | list)]
    return metrics


@patient
def read_job_metrics(
    platform: PlatformConfig, sweep: str, job_name: str
) -> Mapping[str, Any] | None:
    """S3: the metrics.json that the training program wrote."""
    key = names.job_output_key(platform.prefix, sweep, job_name)
    return read_metrics(aws_client("s3", platform), platform.bucket, key)
