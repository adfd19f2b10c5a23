"""The folders of a training job that are synced to S3 during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagemaker_emulator.jobs.folder_sync import SyncedFolder, below_opt_ml
from sagemaker_emulator.s3_objects import S3Location

CHECKPOINTS_PATH = "/opt/ml/checkpoints"
TENSORBOARD_PATH = "/opt/ml/output/tensorboard"


def synced_folders(request: Mapping[str, Any]) -> list[SyncedFolder]:
    """Return the folders in the CheckpointConfig and TensorBoardOutputConfig of a request.

    The TensorBoard folder is synced to <prefix>/<job>/tensorboard-output.
    """
    folders = []
    if checkpoints := request.get("CheckpointConfig"):
        path = below_opt_ml(checkpoints.get("LocalPath") or CHECKPOINTS_PATH)
        folders.append(
            SyncedFolder(
                path, S3Location.parse(checkpoints["S3Uri"].rstrip("/") + "/"), restored=True
            )
        )
    if board := request.get("TensorBoardOutputConfig"):
        path = below_opt_ml(board.get("LocalPath") or TENSORBOARD_PATH)
        uri = (
            f"{board['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/tensorboard-output/"
        )
        folders.append(SyncedFolder(path, S3Location.parse(uri), restored=False))
    return folders
