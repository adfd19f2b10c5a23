"""Keeps moto's ECR across restarts: repositories and their images."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import DEFAULT_REGION, credential_scope
from sagemaker_emulator.state.files import read_json, write_json
from sagemaker_emulator.state.unsaved import Ledger, NotSaved

MANIFEST_MEDIA_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
TARGET_PREFIX = "AmazonEC2ContainerRegistry_V20150921."
"""Prefix of the X-Amz-Target header in ECR calls."""
_REMEDY = (
    "remove it and restart the platform; images built here are then registered again, but"
    " empty repositories are lost"
)
_READING = ("Describe", "Get", "List", "BatchGet", "BatchCheck")

logger = logging.getLogger(__name__)


class EcrSnapshot:
    """Saves the state of ECR in all regions that were written to, and restores it."""

    def __init__(self, path: Path, clients: ClientFactory, ledger: Ledger) -> None:
        self._path = path
        self._clients = clients
        self._ledger = ledger
        self._lock = threading.Lock()
        self._regions: set[str] = set()
        self._is_written = True

    def close(self) -> None:
        """Write the state again if the last attempt failed."""
        if not self._is_written:
            with contextlib.suppress(NotSaved):
                self._write()

    def observe(self, environ: Mapping[str, Any]) -> None:
        """Save the state that a successful request can have changed.

        Raises:
            NotSaved: If the state cannot be written.
        """
        prefix, _, action = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")
        if f"{prefix}." != TARGET_PREFIX or action.startswith(_READING):
            return
        scope = credential_scope(environ)
        with self._lock:
            self._regions.add(scope.region if scope else DEFAULT_REGION)
        self._write()

    def _write(self) -> None:
        """Save the repositories of all regions in use (a few kilobytes) to one file, atomically."""
        with self._lock:
            self._is_written = False
            repositories = {region: self._read_region(region) for region in sorted(self._regions)}
            with self._ledger.tracking("the repositories and images of ECR"):
                write_json(self._path, repositories)
            self._is_written = True

    def restore(self, images_in_store: Sequence[tuple[str, str, str]]) -> None:
        """Restore the repositories or, without a snapshot, register the images in the store.

        The snapshot takes precedence, so that images that were deleted from ECR remain deleted.
        Images that were built here but whose files are gone are left out, so that clients rebuild
        them.

        Raises:
            DamagedFile: If the snapshot is damaged.
        """
        snapshot = read_json(self._path, _readable, _REMEDY)
        if snapshot is None:
            self._fill_from_store(images_in_store)
            return
        with self._lock:
            self._regions |= set(snapshot)
        whole = {digest for _, _, digest in images_in_store}
        for region, repositories in snapshot.items():
            for repository in repositories:
                images = [
                    image
                    for image in repository["images"]
                    if image["digest"] in whole or not _is_built(image)
                ]
                self._restore_repository(
                    self._clients("ecr", region), {**repository, "images": images}
                )

    def _fill_from_store(self, images_in_store: Sequence[tuple[str, str, str]]) -> None:
        ecr = self._clients("ecr", DEFAULT_REGION)
        for repository, tag, digest in images_in_store:
            try:
                ensure_repository(ecr, repository)
                put_image(ecr, repository, tag, digest)
            except (ClientError, ParamValidationError) as error:
                logger.error(
                    "Image %s:%s of the store could not be registered in ECR: %s",
                    repository,
                    tag,
                    error,
                )

    def _read_region(self, region: str) -> list[dict[str, Any]]:
        ecr = self._clients("ecr", region)
        pages = ecr.get_paginator("describe_repositories").paginate()
        return [self._read_repository(ecr, item) for page in pages for item in page["repositories"]]

    def _read_repository(self, ecr: Any, repository: dict[str, Any]) -> dict[str, Any]:
        name = repository["repositoryName"]
        images: list[dict[str, Any]] = []
        for image_id in ecr.list_images(repositoryName=name)["imageIds"]:
            answer = ecr.batch_get_image(
                repositoryName=name, imageIds=[{"imageDigest": image_id["imageDigest"]}]
            )
            images += [
                {
                    "digest": image_id["imageDigest"],
                    "tag": image_id.get("imageTag"),
                    "manifest": image["imageManifest"],
                }
                for image in answer["images"][:1]
            ]
        return {"name": name, "tag_mutability": repository["imageTagMutability"], "images": images}

    def _restore_repository(self, ecr: Any, repository: dict[str, Any]) -> None:
        name = repository["name"]
        ecr.create_repository(repositoryName=name, imageTagMutability=repository["tag_mutability"])
        for image in repository["images"]:
            tag = {"imageTag": image["tag"]} if image["tag"] else {}
            try:
                ecr.put_image(
                    repositoryName=name,
                    imageManifest=image["manifest"],
                    imageManifestMediaType=MANIFEST_MEDIA_TYPE,
                    imageDigest=image["digest"],
                    **tag,
                )
            except ClientError as error:
                logger.error("Image %s@%s could not be restored: %s", name, image["digest"], error)


def _readable(value: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the repositories by region.

    Raises:
        KeyError: If a field is missing. A wrong type or value raises other exceptions.
    """
    for repositories in value.values():
        for repository in repositories:
            str(repository["name"] + repository["tag_mutability"])
            for image in repository["images"]:
                str(image["digest"] + (image["tag"] or ""))
                _is_built(image)
    return dict(value)


def _is_built(image: dict[str, Any]) -> bool:
    """Return True if put_image() registered the image, since the digest is also in its config."""
    return bool(json.loads(image["manifest"]).get("config", {}).get("digest") == image["digest"])


def ensure_repository(ecr: Any, name: str) -> None:
    """Create the repository with immutable tags, unless it exists.

    On AWS, a CloudFormation stack creates it.
    """
    with contextlib.suppress(ecr.exceptions.RepositoryAlreadyExistsException):
        ecr.create_repository(repositoryName=name, imageTagMutability="IMMUTABLE")


def put_image(
    ecr: Any, repository: str, tag: str, digest: str, annotations: Mapping[str, str] | None = None
) -> None:
    """Register an image under its content digest.

    Raises:
        ImageAlreadyExistsException: If an immutable tag is in use.
    """
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": 0,
            "digest": digest,
        },
        "layers": [],
    }
    if annotations:
        manifest["annotations"] = dict(annotations)
    ecr.put_image(
        repositoryName=repository,
        imageManifest=json.dumps(manifest, sort_keys=True),
        imageManifestMediaType=MANIFEST_MEDIA_TYPE,
        imageTag=tag,
        imageDigest=digest,
    )
