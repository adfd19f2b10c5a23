"""The local platform of a config's state folder, started on demand and accessed only by URL."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from urllib.parse import urlparse

from nodesweep.aws.local_status import (
    KeyUnreadable,
    NotLocalPlatform,
    loopback_endpoint,
    own_status,
    read_key,
    served_endpoint,
)
from nodesweep.configs.models import PlatformConfig

logger = logging.getLogger("nodesweep.platform")
EMULATOR_REMEDY = "In a checkout, run: pip install ./infra/local '.[local]'"
# `start` gives up 60 s after its last progress. The limit allows for another start in this folder,
# a predecessor that is stopping, and the start itself, each taking its maximum time.
_START_SECONDS = 2 * 960 + 60
_NOT_SAVED = 3  # exit code of `leave`; this layer calls infra only as a process
_DAMAGED = "damaged: "  # prefix of a line that `start` writes to stderr
_ANSWER_SECONDS = 10.0
_STOP_SECONDS = (
    200  # a stopping job has 120 s between SIGTERM and SIGKILL, as on AWS, and uploads after that
)


class LocalPlatformError(Exception):
    """The local platform did not start or respond, or could not keep all results."""


@contextmanager
def running_platform(platform: PlatformConfig) -> Iterator[PlatformConfig]:
    """Keep the state folder's platform running, and yield the config with the actual endpoint.

    A platform is recognized by its key. If the config's port is taken, a free one is used and
    logged. A platform that a run started stops with the last run that uses it. A failure to stop is
    only logged, because the work is done and the platform ends with this process anyway.

    Raises:
        LocalPlatformError: The platform does not start, or its disk is full on exit and some
            results are lost.
    """
    if not platform.autostart:
        yield platform
        return
    # The platform watches its owner processes and ends with the last one, even on SIGKILL.
    folder = ["--state-dir", platform.state_directory, "--owner-pid", str(os.getpid())]
    own = own_platform(platform)
    is_owner = own is not None and _join(own, folder)
    if own is not None and not is_owner:
        own = own_platform(platform)  # _join() has waited for a platform that was stopping
    if own is None:
        own, is_owner = _start(platform, folder), True
    try:
        yield own
    except BaseException:
        if is_owner and (loss := _leave(own, folder)):
            logger.error("%s", loss)
        raise
    if is_owner and (loss := _leave(own, folder)):
        raise LocalPlatformError(loss)


def own_platform(
    platform: PlatformConfig, count_unresponsive: bool = False
) -> PlatformConfig | None:
    """Return the config with the endpoint of its state folder's running platform, or None.

    A platform that is stopping, or has a different key, does not count. A config without autostart
    is returned unchanged.

    Args:
        platform: The config.
        count_unresponsive: Count a platform that does not respond in time as running, since it may
            be busy.
    """
    if not platform.autostart:
        return platform
    endpoint = served_endpoint(platform.state_directory)
    if endpoint is None:
        return None
    try:
        key = read_key(platform.state_directory)
        is_up = bool(own_status(endpoint, key, _ANSWER_SECONDS).get("running"))
    except TimeoutError:
        is_up = count_unresponsive
    except (OSError, KeyUnreadable, NotLocalPlatform):
        return None
    return platform.model_copy(update={"endpoint_url": endpoint}) if is_up else None


def _join(own: PlatformConfig, folder: Sequence[str]) -> bool:
    joined = _call("join", *_port_of(own), *folder, seconds=_START_SECONDS)
    return joined.returncode == 0


def _start(platform: PlatformConfig, folder: Sequence[str]) -> PlatformConfig:
    wanted = loopback_endpoint(platform.endpoint_url or "")
    started = _call("start", *_port_of(platform), "--or-free-port", *folder, seconds=_START_SECONDS)
    if started.returncode != 0:
        raise LocalPlatformError(
            f"the local platform did not start at {wanted}:\n{started.stderr.strip()}"
        )
    for line in started.stderr.splitlines():
        if line.startswith(_DAMAGED):
            logger.warning("the state folder of the local platform is %s", line)
    endpoint = started.stdout.strip()
    if endpoint != wanted:
        logger.warning(
            "%s belongs to another program or platform; the platform of %s is at %s",
            wanted,
            platform.state_directory,
            endpoint,
        )
    return platform.model_copy(update={"endpoint_url": endpoint})


def _port_of(platform: PlatformConfig) -> tuple[str, str]:
    return "--port", str(urlparse(platform.endpoint_url or "").port)


def _leave(platform: PlatformConfig, folder: Sequence[str]) -> str | None:
    """Leave the platform; return a message if it stopped but could not keep all results."""
    try:
        result = _call("leave", *_port_of(platform), *folder, seconds=_STOP_SECONDS)
    except LocalPlatformError as error:
        logger.warning("the local platform at %s did not stop: %s", platform.endpoint_url, error)
        return None
    if result.returncode == _NOT_SAVED:
        return f"the local platform at {platform.endpoint_url} has stopped: {result.stderr.strip()}"
    if result.returncode != 0:
        logger.warning(
            "the local platform at %s did not stop: %s",
            platform.endpoint_url,
            result.stderr.strip(),
        )
    return None


def emulator_command(*arguments: str) -> list[str]:
    """Return the command line of the emulator, which the extra `local` installs.

    Raises:
        LocalPlatformError: It is not installed; the message gives the remedy.
    """
    if find_spec("sagemaker_emulator") is None:
        raise LocalPlatformError(
            "The local platform needs packages that are not installed: sagemaker-emulator."
            f" {EMULATOR_REMEDY}"
        )
    return [sys.executable, "-P", "-m", "sagemaker_emulator", *arguments]


def _call(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    command = emulator_command(*arguments)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise LocalPlatformError(
            f"`{shlex.join(['python', '-m', 'sagemaker_emulator', *arguments])}` did not respond"
            f" within {seconds:g} s"
        ) from None
