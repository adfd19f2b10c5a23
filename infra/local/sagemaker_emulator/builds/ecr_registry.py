"""Connects moto's ECR to a real registry.

Images that are pushed to the addresses that ECR returns are registered in ECR.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from wsgiref.types import StartResponse, WSGIApplication

from botocore.exceptions import ClientError

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import DEFAULT_REGION, credential_scope
from sagemaker_emulator.state.ecr_snapshot import TARGET_PREFIX, ensure_repository, put_image

_ENDPOINT = re.compile(rb"https://\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com")
_REGISTRY = re.compile(rb"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?=/)")
_REPOSITORY = re.compile(rb'"repositoryName": ?"([^"]+)"')


class Registry(Protocol):
    """A registry that enforces ECR's rules for pushes."""

    address: str
    backend: str | None
    rules: Any

    def close(self) -> None:
        """Stop the registry."""


class EcrRegistry:
    """Implements ECR's rules for pushes, and makes ECR responses point to the registry.

    See `PushRules` in engine/container/registry.py.
    """

    def __init__(self, address: str) -> None:
        self._address = address.encode()
        self._lock = threading.Lock()
        self._region_by_repository: dict[str, str] = {}
        self._clients: ClientFactory | None = None

    def connect(self, clients: ClientFactory) -> None:
        """Set the clients for ECR. Call this before the first push."""
        self._clients = clients

    def refusal(self, repository: str, tag: str, digest: str) -> str | None:
        """Return ECR's error message if an immutable tag points to a different image, else None."""
        ecr = self._ecr(repository)
        try:
            mutability = ecr.describe_repositories(repositoryNames=[repository])["repositories"][0][
                "imageTagMutability"
            ]
            found = ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])[
                "imageDetails"
            ]
        except ClientError:  # no such repository or tag
            return None
        if mutability != "IMMUTABLE" or not found or found[0]["imageDigest"] == digest:
            return None
        return (
            f"The image tag '{tag}' already exists in the '{repository}' repository and cannot be"
            " overwritten because the repository is immutable."
        )

    def pushed(self, repository: str, tag: str, digest: str) -> None:
        """Register a pushed image. A missing repository is created with immutable tags."""
        ecr = self._ecr(repository)
        ensure_repository(ecr, repository)
        try:
            put_image(ecr, repository, tag, digest)
        except ecr.exceptions.ImageAlreadyExistsException:
            return  # the same image was pushed again

    def wrap(self, moto: WSGIApplication) -> WSGIApplication:
        """Wrap moto so that ECR responses contain the address of the registry."""

        def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
            if not environ.get("HTTP_X_AMZ_TARGET", "").startswith(TARGET_PREFIX):
                return moto(environ, start_response)
            return self._rewrite(moto, environ, start_response)

        return application

    def _rewrite(
        self, moto: WSGIApplication, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        answers: list[tuple[str, list[tuple[str, str]], Any]] = []

        def record_response(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            answers.append((status, headers, exc_info))
            return lambda data: None

        body = b"".join(moto(environ, record_response))
        scope = credential_scope(environ)
        with self._lock:
            for name in _REPOSITORY.findall(body):
                self._region_by_repository[name.decode()] = (
                    scope.region if scope else DEFAULT_REGION
                )
        body = _REGISTRY.sub(self._address, _ENDPOINT.sub(b"http://" + self._address, body))
        status, headers, exc_info = answers[-1]
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start_response(status, [*kept, ("Content-Length", str(len(body)))], exc_info)
        return [body]

    def _ecr(self, repository: str) -> Any:
        assert self._clients is not None
        with self._lock:
            region = self._region_by_repository.get(repository, DEFAULT_REGION)
        return self._clients("ecr", region)
