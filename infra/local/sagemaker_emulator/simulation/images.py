"""Images of the simulated engine, whose builds only compute a digest of the build context."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sagemaker_emulator.api.protocol import SIMULATED_ACCOUNT_ID
from sagemaker_emulator.interfaces import BuiltImage, ImageBuildError
from sagemaker_emulator.state.files import read_json, write_json

SIMULATED_LABEL = "nodesweep.simulated"
_OWN = re.compile(
    rf"{SIMULATED_ACCOUNT_ID}\.dkr\.ecr\.[^/]+/(?P<repository>[^@:]+)(?:@(?P<digest>sha256:[0-9a-f]{{64}})|:(?P<tag>.+))?"
)


class SimulatedImageStore:
    """Records images without building them.

    See `sagemaker_emulator.interfaces.ImageStore`.
    """

    def __init__(self, state_dir: Path) -> None:
        self._index = state_dir / "simulated-images.json"
        self._lock = threading.Lock()
        self._images = (
            read_json(self._index, _entries, "remove it; runs rebuild their images") or []
        )

    def build(
        self,
        context: Path,
        repository: str,
        tag: str,
        build_args: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
        deadline_seconds: float,
    ) -> BuiltImage:
        """Tag a digest of the build context and the build arguments.

        Raises:
            ImageBuildError: If the build context has no Dockerfile.
        """
        if not (context / "Dockerfile").is_file():
            raise ImageBuildError("READ Dockerfile: the build context has no Dockerfile")
        digest = _digest(context, build_args)
        on_line(
            "[simulated] nothing is built: the digest is computed from the build context and"
            " arguments"
        )
        with self._lock:
            kept = [entry for entry in self._images if entry[:2] != (repository, tag)]
            self._images = [*kept, (repository, tag, digest)]
            write_json(self._index, self._images)
        return BuiltImage(digest, {SIMULATED_LABEL: "true"}, {SIMULATED_LABEL: "true"})

    def resolve(self, image_uri: str) -> Path | None:
        """Return the index if the image was recorded or is from a different account, else None."""
        match = _OWN.fullmatch(image_uri)
        if match is None:
            return self._index
        for repository, tag, digest in self.images():
            wanted = (
                digest == match["digest"] if match["digest"] else tag == (match["tag"] or "latest")
            )
            if wanted and repository == match["repository"]:
                return self._index
        return None

    def images(self) -> Sequence[tuple[str, str, str]]:
        with self._lock:
            return list(self._images)


def _entries(value: Any) -> list[tuple[str, str, str]]:
    """Return the repository, tag and digest in each entry.

    Raises:
        TypeError, ValueError: If the value is not a list of entries with three members.
    """
    if not isinstance(value, list):
        raise TypeError("not a list")
    return [(str(repository), str(tag), str(digest)) for repository, tag, digest in value]


def _digest(context: Path, build_args: Mapping[str, str]) -> str:
    files = {
        path.relative_to(context).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in context.rglob("*")
        if path.is_file()
    }
    content = json.dumps(["simulated", files, dict(build_args)], sort_keys=True)
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
