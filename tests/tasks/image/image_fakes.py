"""Fakes for tests of the image build: a small context, a simulated clock, an image in ECR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodesweep.configs.models import ImageConfig
from nodesweep.polling import Clock

MANIFEST = (
    '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}'
)


def make_context(folder: Path, dockerfile: str = "FROM scratch\n") -> ImageConfig:
    """Create a context of Dockerfile, .dockerignore, train.py, and an ignored pkg/notes.md."""
    root = folder / "image"
    (root / "pkg").mkdir(parents=True)
    (root / "Dockerfile").write_text(dockerfile)
    (root / "train.py").write_text("print(1)\n")
    (root / "pkg" / "notes.md").write_text("ignored\n")
    (root / ".dockerignore").write_text("*.md\n**/*.md\n")
    return ImageConfig(context=str(root))


def counting_clock() -> Clock:
    """Return a clock that advances only when someone waits on it."""
    now = [0.0]

    def wait_for(seconds: float) -> bool:
        now[0] += seconds
        return False

    return Clock(monotonic=lambda: now[0], wait=wait_for)


def make_repository(ecr: Any) -> str:
    """Create the repository `nodesweep` and return its URI."""
    made = ecr.create_repository(repositoryName="nodesweep", imageTagMutability="IMMUTABLE")[
        "repository"
    ]
    return str(made["repositoryUri"])


def push(ecr: Any, tag: str, repository: str = "nodesweep") -> str:
    """Add an image to the repository and return its digest."""
    put = ecr.put_image(repositoryName=repository, imageTag=tag, imageManifest=MANIFEST)
    return str(put["image"]["imageId"]["imageDigest"])
