"""Collects what the nodes left in model/ and output/data/ and uploads it, as SageMaker does after training."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from infra.local.interfaces import Node
from infra.local.s3_objects import S3Location

_GZIP_LEVEL = 1
"""Weights hardly compress: level 9 takes ten times as long for a few per cent."""
_TRANSFER = TransferConfig(use_threads=False)


class ArtifactUploadError(Exception):
    """An artifact can't be uploaded; the text is FailureReason's, after "ClientError: "."""


def upload_model(s3: Any, nodes: Sequence[Node], model_uri: str, scratch: Path) -> None:
    """model.tar.gz of every node's model folder; one object per file where the URI is a folder."""
    files = _merged([node.opt_ml / "model" for node in nodes])
    if model_uri.endswith("/"):
        for name, path in files.items():
            _upload(s3, path, S3Location.parse(model_uri + name))
    elif files:
        _upload_archive(s3, files, S3Location.parse(model_uri), scratch)


def upload_output(s3: Any, nodes: Sequence[Node], output_prefix: str, scratch: Path) -> None:
    """output.tar.gz of every node's output/data folder; nothing where all are empty."""
    files = _merged([node.opt_ml / "output" / "data" for node in nodes])
    if files:
        _upload_archive(s3, files, S3Location.parse(f"{output_prefix}/output.tar.gz"), scratch)


def _merged(folders: Sequence[Path]) -> dict[str, Path]:
    """Relative name -> file, over all nodes; where several nodes wrote the same name, the first node's counts."""
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files.setdefault(path.relative_to(folder).as_posix(), path)
    return files


def _upload_archive(s3: Any, files: Mapping[str, Path], target: S3Location, scratch: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=scratch, suffix=".tar.gz") as temporary:
        with tarfile.open(fileobj=temporary, mode="w:gz", compresslevel=_GZIP_LEVEL, dereference=True) as archive:
            for name, path in files.items():
                archive.add(path, arcname=name, recursive=False)
        temporary.flush()
        _upload(s3, Path(temporary.name), target)


def _upload(s3: Any, path: Path, target: S3Location) -> None:
    try:
        s3.upload_file(str(path), target.bucket, target.key, Config=_TRANSFER)
    except (S3UploadFailedError, ClientError, BotoCoreError) as error:
        raise ArtifactUploadError(f"Artifact upload failed:{error}") from error
