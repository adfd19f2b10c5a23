"""Uploads the output folders of the nodes after they have ended, as SageMaker does."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig

from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs.endings import ClientFault
from sagemaker_emulator.node_tree import file_names, open_file
from sagemaker_emulator.s3_objects import S3_ERRORS, S3Location

_GZIP_LEVEL = 1
"""Model weights hardly compress: level 9 takes ten times as long to save a few percent."""
_TRANSFER = TransferConfig(use_threads=False)


class ArtifactUploadError(ClientFault):
    """An artifact could not be uploaded."""


@contextmanager
def _uploading() -> Iterator[None]:
    """Raise ArtifactUploadError if S3 or this machine's disk fails, or a name is not UTF-8."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise ArtifactUploadError(
            f"Artifact upload failed:{error.object!a} is not UTF-8, as keys in S3 must be;"
            " rename the file"
        ) from error
    except (*S3_ERRORS, S3UploadFailedError, OSError) as error:
        raise ArtifactUploadError(f"Artifact upload failed:{error}") from error


@_uploading()
def upload_model(s3: Any, nodes: Sequence[Node], model_uri: str, scratch: Path) -> None:
    """Upload the nodes' model folders as model.tar.gz, or file by file if the URI is a folder."""
    if model_uri.endswith("/"):
        upload_folder(s3, nodes, "model", model_uri)
    elif files := _merged(nodes, "model"):
        _upload_archive(s3, files, "model", S3Location.parse(model_uri), scratch)


@_uploading()
def upload_folder(s3: Any, nodes: Sequence[Node], folder: str, prefix_uri: str) -> None:
    """Upload all files in a folder of the nodes (a path below /opt/ml) to a prefix."""
    for name, node in _merged(nodes, folder).items():
        with open_file(node.opt_ml, f"{folder}/{name}") as file:
            _upload(s3, file, S3Location.parse(f"{prefix_uri.rstrip('/')}/{name}"))


@_uploading()
def upload_output(s3: Any, nodes: Sequence[Node], output_prefix: str, scratch: Path) -> None:
    """Upload the nodes' output/data folders as output.tar.gz, unless all of them are empty."""
    files = _merged(nodes, "output/data")
    if files:
        _upload_archive(
            s3, files, "output/data", S3Location.parse(f"{output_prefix}/output.tar.gz"), scratch
        )


def _merged(nodes: Sequence[Node], folder: str) -> dict[str, Node]:
    files: dict[str, Node] = {}
    for node in nodes:
        for name in file_names(node.opt_ml, folder):
            files.setdefault(name, node)
    return files


def _upload_archive(
    s3: Any, files: Mapping[str, Node], folder: str, target: S3Location, scratch: Path
) -> None:
    with tempfile.NamedTemporaryFile(dir=scratch, suffix=".tar.gz") as temporary:
        with tarfile.open(
            fileobj=temporary, mode="w:gz", compresslevel=_GZIP_LEVEL, dereference=True
        ) as archive:
            for name, node in files.items():
                with open_file(node.opt_ml, f"{folder}/{name}") as file:
                    archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)
        temporary.flush()
        temporary.seek(0)
        _upload(s3, temporary, target)


def _upload(s3: Any, file: IO[bytes], target: S3Location) -> None:
    s3.upload_fileobj(file, target.bucket, target.key, Config=_TRANSFER)
