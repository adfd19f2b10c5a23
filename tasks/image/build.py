"""Building the training image: one interface, and the builder that `image.builder` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nodesweep.configs.models import ImageConfig, PlatformConfig
from nodesweep.tasks.events import tell
from nodesweep.tasks.image.codebuild import CodeBuildBuilder
from nodesweep.tasks.image.docker import DockerBuilder
from nodesweep.tasks.image.find import BuildContext, Image, find_repository
from nodesweep.tasks.platform import TASK_OPTIONS, aws_client
from nodesweep.tasks.polling import Clock
from nodesweep.tasks.task import task


class Builder(Protocol):
    """Builds a context and pushes the result as <repository>:<the context's tag>."""

    def start(self, context: BuildContext, repository: str, token: str) -> str:
        """Check that it can build, and begin or find it running;
        returns its id, for the same token the same one.
        """

    def finish(
        self, context: BuildContext, repository: str, build_id: str, clock: Clock, token: str
    ) -> Image:
        """The image, once it is in ECR; only a build that was started with this token
        is ever stopped.

        Raises ImageBuildFailed with the failing step and its last lines.
        """


@dataclass(frozen=True)
class StartedBuild:
    """A build by its id, the URI of the repository that it pushes to,
    and the token of the run that asked for it.
    """

    id: str
    repository: str
    token: str


def builder_of(platform: PlatformConfig, config: ImageConfig) -> Builder:
    """The builder that the config names."""
    return (
        CodeBuildBuilder(platform, config)
        if config.builder == "codebuild"
        else DockerBuilder(platform, config)
    )


@task(name="start-image-build", **TASK_OPTIONS)
def start_image_build(
    platform: PlatformConfig, config: ImageConfig, context: BuildContext, token: str
) -> StartedBuild:
    """ECR: the repository; builder: start. Called again with its token, the same build."""
    repository = find_repository(
        aws_client("ecr", platform), config, platform.create_missing, context.tag
    )
    return StartedBuild(
        builder_of(platform, config).start(context, repository, token), repository, token
    )


@task(name="wait-for-image-build", **TASK_OPTIONS)
def wait_for_image_build(
    platform: PlatformConfig, config: ImageConfig, context: BuildContext, started: StartedBuild
) -> Image:
    """Builder: wait for the build; ECR: the digest it pushed."""
    try:
        return builder_of(platform, config).finish(
            context, started.repository, started.id, Clock(), started.token
        )
    finally:
        text = f"build {started.id} has ended"
        tell("build-ended", text, source="image", stage="image", build=started.id)
