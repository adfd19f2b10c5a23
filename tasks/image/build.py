"""Build the training image with the builder that `image.builder` selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nodesweep.events import emit
from nodesweep.polling import Clock
from nodesweep.tasks.image.codebuild import CodeBuildBuilder
from nodesweep.tasks.image.docker import DockerBuilder
from nodesweep.tasks.image.find import BuildContext, Image, Images, find_repository


class Builder(Protocol):
    """Builds an image from a context, and pushes it as <repository>:<the context's tag>."""

    def start(self, context: BuildContext, repository: str, token: str) -> str:
        """Start the build, or find the one started with this token, and return its ID."""

    def finish(
        self, context: BuildContext, repository: str, build_id: str, clock: Clock, token: str
    ) -> Image:
        """Return the image once it is in ECR; stop only a build that was started with this token.

        Raises:
            ImageBuildFailed: the build failed; the message gives the step and its last lines.
        """


@dataclass(frozen=True)
class StartedBuild:
    """A build's ID, its repository's URI, and the token of the run that requested it."""

    id: str
    repository: str
    token: str


def builder_of(images: Images) -> Builder:
    """Return the image section's builder."""
    return (CodeBuildBuilder if images.section.builder == "codebuild" else DockerBuilder)(images)


def start_image_build(images: Images, context: BuildContext, token: str) -> StartedBuild:
    """Start the image's build, and find or create its ECR repository.

    A call repeated with the same token returns the same build.
    """
    repository = find_repository(
        images.ecr, images.section, images.backend.platform.create_missing, context.tag
    )
    return StartedBuild(builder_of(images).start(context, repository, token), repository, token)


def wait_for_image_build(images: Images, context: BuildContext, started: StartedBuild) -> Image:
    """Wait for the image's build, and read its digest from ECR."""
    try:
        return builder_of(images).finish(
            context, started.repository, started.id, Clock(), started.token
        )
    finally:
        text = f"build {started.id} has ended"
        emit("build-ended", text, source="image", stage="image", build=started.id)
