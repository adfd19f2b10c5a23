"""The environment of a flow run from a terminal: platform, Prefect API, progress and signals."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from nodesweep.cli.local_platform import running_platform
from nodesweep.cli.prefect_server import connect_prefect
from nodesweep.cli.views.stream import EventStream, ViewOptions
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.errors import RunFailed
from nodesweep.flows.stages.signals import EndSignals, interrupts_deferred
from nodesweep.polling import STOP, Cancelled

if TYPE_CHECKING:
    from prefect.flows import Flow

_Result = TypeVar("_Result")

# Set before Prefect is imported; the user's settings take precedence.
PREFECT_DEFAULTS = {
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    # 3-6 s on two idle cores, several times as long on busy ones
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The command prints the error once; Prefect's record of the run keeps the traceback.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_CLI_WELCOME_MESSAGE": "false",
    "DO_NOT_TRACK": "1",
}


@contextmanager
def command_session(
    view_options: ViewOptions | None = None, knows_jobs: bool = True
) -> Iterator[None]:
    """Show events on stderr, and handle SIGTERM like Ctrl-C; Prefect is not needed.

    With `knows_jobs`, the events name the jobs, and Ctrl-C announces which jobs it stops.
    """
    events = EventStream(view_options or ViewOptions("plain"), sys.stderr)
    events.attach()
    signals = EndSignals(events.announce if knows_jobs else None)
    previous = {
        number: signal.signal(number, signals) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    except Cancelled:
        # Python dropped the signal handler's exception, so the next wait ended the run.
        interrupt = KeyboardInterrupt()
        events.report_end(interrupt)
        raise interrupt from None
    except BaseException as error:
        events.report_end(error)
        raise
    finally:
        events.detach()
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def flow_session(
    platform: PlatformConfig,
    autostart: bool = True,
    modules: Sequence[str] = (),
    view_options: ViewOptions | None = None,
) -> Iterator[PlatformConfig]:
    """Extend command_session() with a Prefect API and the platform, started in parallel.

    Args:
        platform: The config.
        autostart: Start the platform if the config allows it.
        modules: Modules that the flow needs, for connect_prefect().
        view_options: Options for showing events; None for plain lines.

    Yields:
        The config with the platform's endpoint.
    """
    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", module="prefect")
    is_plain = autostart or not platform.autostart
    section = platform if is_plain else platform.model_copy(update={"autostart": False})
    logger = logging.getLogger("nodesweep.session")
    # The thread always ends before the platform is stopped.
    with (
        command_session(view_options),
        ExitStack() as stack,
        ThreadPoolExecutor(1, "start-platform") as thread,
    ):
        starting = thread.submit(stack.enter_context, running_platform(section))
        connect_prefect(modules)
        running = starting.result()
        if running.autostart:
            logger.info("platform at %s", running.endpoint_url)
        is_same = running.endpoint_url == platform.endpoint_url
        endpoint = {"endpoint_url": running.endpoint_url}
        yield platform if is_same else platform.model_copy(update=endpoint)


def run_flow(flow: Flow[..., _Result], config: BenchmarkConfig, **fields: Any) -> _Result:
    """Run a flow with a loaded config; form fields that are not in `fields` stay empty.

    An empty field is passed as None, which Prefect records as null; the flow's default is a marker
    that must not be recorded.
    """
    from nodesweep.flows.stages.form import EMPTY

    parameters = signature(flow.fn).parameters.values()
    empty = {field.name: None for field in parameters if field.default is EMPTY}
    return call_flow(flow, **{**empty, "preset": config, **fields})


def call_flow(flow: Flow[..., _Result], **parameters: Any) -> _Result:
    """Call a flow and raise the actual cause if a signal ended it.

    Prefect reports such a run as Cancelled; this raises KeyboardInterrupt, or the error from jobs
    that could not be stopped.

    Raises:
        RunFailed: Someone cancelled the run in Prefect.
    """
    from prefect.exceptions import CancelledRun

    try:
        with interrupts_deferred():
            return flow(**parameters)
    except CancelledRun:
        if STOP.interrupted and not STOP.cancelled:
            raise _end_of_interrupted() from None
        raise RunFailed(
            "the run was cancelled in Prefect; its jobs were stopped or left running, as set by"
            " sweep.on_cancel. Resume with: nodesweep run CONFIG --resume"
        ) from None


def _end_of_interrupted() -> BaseException:
    return STOP.cause if isinstance(STOP.cause, Exception) else KeyboardInterrupt()
