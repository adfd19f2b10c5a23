"""Restores checkpoints from S3, and syncs nodes' folders to S3 (also TensorBoard logs and outputs).

All nodes share a folder's S3 prefix, as on AWS; of files with the same name, the first node's is
uploaded. Files that a node removes stay in S3. A file that changes while it is read is uploaded
again in the next pass. So is a file that had just been written when it was uploaded, because a
filesystem with coarse timestamps would not show a second change.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig

from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs.endings import ClientFault
from sagemaker_emulator.node_tree import file_names, open_file
from sagemaker_emulator.periodic import PeriodicThread
from sagemaker_emulator.s3_objects import (
    S3_ERRORS,
    S3Location,
    download,
    error_code,
    error_message,
    list_keys,
)

SYNC_SECONDS = 2.0
_COARSEST_MTIME_SECONDS = 2.0  # FAT; ext4 with small inodes: 1
_TRANSFER = TransferConfig(use_threads=False)

logger = logging.getLogger(__name__)


class RestoreError(ClientFault):
    """Checkpoints cannot be restored, or the bucket for the nodes' files is not accessible."""


@dataclass(frozen=True)
class SyncedFolder:
    """A folder in every node's /opt/ml and the S3 prefix to which its files are copied."""

    path: str
    """Path below /opt/ml, without a leading slash."""
    target: S3Location
    restored: bool

    def on(self, node: Node) -> Path:
        return node.opt_ml / self.path


def below_opt_ml(local_path: str) -> str:
    """Return a path relative to /opt/ml, for instance "checkpoints" for /opt/ml/checkpoints/.

    Raises:
        ValueError: If the path is not below /opt/ml.
    """
    parts = PurePosixPath(local_path).parts
    if parts[:3] != ("/", "opt", "ml") or len(parts) < 4 or ".." in parts:
        raise ValueError(
            f"LocalPath {local_path} is not below /opt/ml, the only tree that is private to each"
            " node of the local platform: use a folder below it, which SageMaker also accepts"
        )
    return "/".join(parts[3:])


class FolderSync:
    """Syncs the folders of one segment's nodes; a context manager around their run.

    Call `restore` before. On exit, when the nodes have ended, the last changes are copied.
    """

    def __init__(
        self,
        s3: Any,
        folders: Sequence[SyncedFolder],
        nodes: Sequence[Node],
        interval_seconds: float = SYNC_SECONDS,
    ) -> None:
        self._s3 = s3
        self._folders = folders
        self._nodes = nodes
        self._uploaded: dict[str, tuple[str, int, int]] = {}
        self._passes = PeriodicThread("folder-sync", self._upload_changes, repeat(interval_seconds))

    def restore(self) -> None:
        """Create the folders, and fill the checkpoint folders from S3.

        Raises:
            RestoreError: If a download fails or a bucket is not accessible.
        """
        for folder in self._folders:
            for node in self._nodes:
                folder.on(node).mkdir(parents=True, exist_ok=True)
            if folder.restored:
                self._download(folder)
            else:
                self._find_bucket(folder)

    def __enter__(self) -> Self:
        if self._folders:
            self._passes.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._passes.stop()
        self._upload_changes()

    def _upload_changes(self) -> None:
        """Upload changed files; failures are retried in the next pass and never end the job."""
        for folder in self._folders:
            for name, node in self._files(folder).items():
                path, key = folder.on(node) / name, folder.target.key + name
                try:
                    with open_file(node.opt_ml, f"{folder.path}/{name}") as file:
                        status = os.fstat(file.fileno())
                        version, is_settled = _version(path, status), _is_settled(status)
                        if self._uploaded.get(key) != version:
                            self._s3.upload_fileobj(
                                file, folder.target.bucket, key, Config=_TRANSFER
                            )
                            if is_settled:
                                self._uploaded[key] = version
                except FileNotFoundError:
                    continue  # replaced or removed by the program in the meantime
                except (
                    *(*S3_ERRORS, S3UploadFailedError, OSError),
                    UnicodeError,  # a key must be UTF-8, but a file name need not be
                ) as error:
                    shown = os.fsencode(path).decode(errors="backslashreplace")
                    logger.warning("%s could not be copied to %s: %s", shown, folder.target, error)

    def _files(self, folder: SyncedFolder) -> dict[str, Node]:
        """Return the first node that has each file, by the file's path below the folder."""
        found: dict[str, Node] = {}
        for node in self._nodes:
            for name in file_names(node.opt_ml, folder.path):
                found.setdefault(name, node)
        return found

    def _download(self, folder: SyncedFolder) -> None:
        target = folder.target
        try:
            for key in list_keys(self._s3, target):
                name = key.removeprefix(target.key)
                if not name or ".." in PurePosixPath(name).parts or name.startswith("/"):
                    continue  # not a name that a node could have written
                for node in self._nodes:
                    path = folder.on(node) / name
                    download(self._s3, S3Location(target.bucket, key), path)
                    self._note_restored(key, path)
        except S3_ERRORS as error:
            raise RestoreError(
                f"Checkpoint download failed:{target} ({error_code(error)}: {error_message(error)})"
            ) from error

    def _find_bucket(self, folder: SyncedFolder) -> None:
        """Check that the bucket is accessible; otherwise, the nodes' files would be lost."""
        try:
            self._s3.head_bucket(Bucket=folder.target.bucket)
        except S3_ERRORS as error:
            raise RestoreError(
                f"The bucket {folder.target.bucket} that /opt/ml/{folder.path} is copied to"
                f" can't be accessed ({error_code(error)}: {error_message(error)})"
            ) from error

    def _note_restored(self, key: str, path: Path) -> None:
        """Record a restored file as uploaded, with the first node's copy as its version."""
        self._uploaded.setdefault(key, _version(path, path.stat()))


def _is_settled(status: os.stat_result) -> bool:
    """Return True if every later change of the file will also change its mtime."""
    return abs(time.time() - status.st_mtime) > _COARSEST_MTIME_SECONDS


def _version(path: Path, status: os.stat_result) -> tuple[str, int, int]:
    return str(path), status.st_mtime_ns, status.st_size
