"""Run image builds in parallel with other work, and stop them if the other work fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from prefect.futures import PrefectFuture

from nodesweep.events import event_extra
from nodesweep.polling import STOP
from nodesweep.tasks.calls import start_image_build, wait_for_image_build
from nodesweep.tasks.image.find import BuildContext, Image, Images

logger = logging.getLogger("nodesweep.prepare")
_STOP_BUILD_SECONDS = 30


def start_build(images: Images, context: BuildContext) -> PrefectFuture[Image]:
    """Start a build of the context, or adopt a running one; the future's result is the image."""
    token = f"{context.tag}-{datetime.now(UTC):%Y%m%d%H%M%S%f}"
    started = start_image_build(images, context, token)
    logger.info(
        "image %s:%s is not in ECR; building it (%s)",
        images.section.repository,
        context.tag,
        started.id,
        extra=event_extra("build-begun", stage="image", build=started.id),
    )
    return wait_for_image_build.submit(images, context, started)


@contextmanager
def stopping_build_on_error(building: PrefectFuture[Image] | None) -> Iterator[None]:
    """Stop the build if the code inside raises, and wait up to 30 s for it before re-raising."""
    try:
        yield
    except BaseException:
        STOP.set()
        if building is not None:
            building.wait(_STOP_BUILD_SECONDS)
        raise
