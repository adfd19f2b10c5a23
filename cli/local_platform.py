"""The embedded platform: started when a config asks for it and nothing answers at its endpoint;
used by URL alone.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlparse

from configs.models import PlatformConfig
from tasks.local_status import NotLocalPlatform, read_status

logger = logging.getLogger("nodesweep.platform")
_START_SECONDS = 90  # the platform gives itself 60, a stopping predecessor included
_NOT_KEPT = 3  # exit code of `leave`; this floor reaches infra by process calls alone
_ANSWER_SECONDS = 2.0
_STOP_SECONDS = (
    200  # a job on its way out has 120 s between SIGTERM and SIGKILL, as on AWS, and uploads then
)


class LocalPlatformError(Exception):
    """The embedded platform could not be started."""


@contextmanager
def running_platform(platform: PlatformConfig) -> Iterator[None]:
    """Inside, something answers at the endpoint; what a run started is stopped when the last run
    that uses it ends.

    Raises LocalPlatformError where it does not start, and at the end where its disk was full: not
    all that the run left there is kept. One that does not stop is logged: the work is done by then,
    and the platform ends with this process anyway.
    """
    if not platform.autostart:
        yield
        return
    port = urlparse(platform.endpoint_url or "").port
    # The platform watches its owners and ends with the last of them, however they end.
    arguments = [
        "--port",
        str(port),
        "--state-dir",
        platform.state_directory,
        "--owner-pid",
        str(os.getpid()),
    ]
    is_owner = (
        answers(platform) and _call("join", *arguments, seconds=_START_SECONDS).returncode == 0
    )
    if not answers(platform):
        started = _call("start", *arguments, seconds=_START_SECONDS)
        if started.returncode != 0:
            raise LocalPlatformError(
                "the local platform did not start at"
                f" {platform.endpoint_url}:\n{started.stderr.strip()}"
            )
        is_owner = True
    try:
        yield
    except BaseException:
        if is_owner and (loss := _leave(platform, arguments)):
            logger.error("%s", loss)
        raise
    if is_owner and (loss := _leave(platform, arguments)):
        raise LocalPlatformError(loss)


def _leave(platform: PlatformConfig, arguments: Sequence[str]) -> str | None:
    """What the platform could not keep, None where it kept everything or has not stopped."""
    try:
        left = _call("leave", *arguments, seconds=_STOP_SECONDS)
    except LocalPlatformError as error:
        logger.warning("the local platform at %s did not stop: %s", platform.endpoint_url, error)
        return None
    if left.returncode == _NOT_KEPT:
        return f"the local platform at {platform.endpoint_url} has stopped: {left.stderr.strip()}"
    if left.returncode != 0:
        logger.warning(
            "the local platform at %s did not stop: %s", platform.endpoint_url, left.stderr.strip()
        )
    return None


def answers(platform: PlatformConfig) -> bool:
    """Whether a local platform is up at the endpoint: one on its way out is not,
    nor is any other program.
    """
    return _is_up(platform, where_silent=False)


def is_over(platform: PlatformConfig) -> bool:
    """Whether no local platform is up at the endpoint;
    one that does not answer in time may be busy, and is up.
    """
    return not _is_up(platform, where_silent=True)


def _is_up(platform: PlatformConfig, where_silent: bool) -> bool:
    try:
        return bool(read_status(platform.endpoint_url or "", _ANSWER_SECONDS).get("running"))
    except TimeoutError:
        return where_silent
    except (OSError, NotLocalPlatform):
        return False


def _call(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "infra.local", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise LocalPlatformError(
            f"`{shlex.join(['python', '-m', 'infra.local', *arguments])}` gave no answer"
            f" within {seconds:g} s"
        ) from None
