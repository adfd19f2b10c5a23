"""Poll Prefect's server for a cancellation, and put the run's tasks into the Cancelled state.

A worker sends SIGTERM when a run is cancelled, but it stops watching for cancellations once the
server has been unreachable for about 25 s (PrefectHQ/prefect#20219), so the run also polls its own
state. A suspended run gets no signal. Prefect stops it only when its next task starts, which can
take hours while the run waits for jobs.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar
from uuid import UUID

from nodesweep.polling import STOP, Cancelled, Clock, intervals

logger = logging.getLogger("nodesweep.cancelling")
_T = TypeVar("_T")
POLL_SECONDS = 5.0
"""Seconds between two polls of the run's state."""
_ANSWER_SECONDS, _TRIES = 5.0, 2
"""Timeout of one poll in seconds, and number of tries after a signal.

The worker kills the process 30 s after the signal.
"""


def is_cancel(error: BaseException) -> bool:
    """Return True if a user or the time limit ended the run, not the worker, machine or an error.

    A worker sends SIGTERM in either case, so the state on the server decides: a cancelled run is
    Cancelling, any other run is still Running. A run that has timed out is Running, too.
    """
    from prefect.exceptions import CancelledRun, Pause, TerminationSignal

    if isinstance(error, Pause):  # raised by Prefect in a task of a suspended run
        STOP.cancelled, STOP.suspended = True, STOP.suspended or error.state
    if STOP.cancelled or isinstance(error, KeyboardInterrupt):
        return True
    if not isinstance(error, Cancelled | CancelledRun | TerminationSignal):
        return False
    if STOP.timed_out and not isinstance(error, TerminationSignal):
        return True
    if has_deployment():
        STOP.cancelled = _is_ended_at_server(logging.WARNING, _TRIES)
        return STOP.cancelled
    return True


def has_deployment() -> bool:
    """Return True if a worker rather than a command executes the run."""
    from prefect.runtime import deployment

    return deployment.id is not None


def announce_suspension() -> None:
    """Emit the last event of a suspended run, for the automation in infra/worker/automations.py.

    The run still sends heartbeats after the server's own event, until its jobs are stopped.
    """
    from prefect.events import emit_event

    tag = {"prefect.resource.id": "prefect.tag.nodesweep", "prefect.resource.role": "tag"}
    resource = {"prefect.resource.id": f"prefect.flow-run.{_run_id()}"}
    emit_event("nodesweep.suspended", resource=resource, related=[tag])


def _run_id() -> str | None:
    from prefect.runtime import flow_run

    run: str | None = flow_run.id
    return run


def _is_ended_at_server(level: int, tries: int = 1) -> bool:
    """Return True if the server reports the run as cancelled, being cancelled or paused.

    Errors are logged at `level`.
    """
    run = _run_id()
    state = None if run is None else state_at_server(UUID(run), level, tries)
    if state is None:
        return False
    if state.is_paused() and state.name == "Suspended":
        STOP.suspended = state
    return bool(state.is_cancelling() or state.is_cancelled() or state.is_paused())


def state_at_server(run: UUID, level: int, tries: int = 1) -> Any:
    """Return the run's state, or log the error at `level` and return None if it can't be read."""
    for _ in range(tries):
        try:
            return _read_state(run)
        except Exception as error:  # an unreachable server has not cancelled anything
            logger.log(level, "could not check whether Prefect cancelled the run: %s", error)
    return None


def wait_for_server(clock: Clock, seconds: float) -> bool:
    """Wait until Prefect's server reports the run's state.

    Returns:
        True, or False if the server has not reported it within `seconds`.
    """
    run, deadline = _run_id(), clock.monotonic() + seconds
    for pause in intervals(1.0, 15.0):
        if run is None or state_at_server(UUID(run), logging.DEBUG) is not None:
            return True
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(pause)
    return False


def _read_state(run: UUID) -> Any:
    with quick_client(_ANSWER_SECONDS) as client:
        return client.read_flow_run(run).state


@contextmanager
def quick_client(timeout_seconds: float, retries: int = 0) -> Iterator[Any]:
    """Yield a separate Prefect API client whose requests time out after `timeout_seconds`.

    With Prefect's default number of retries, a single request could take minutes.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: retries}),
        get_client(sync_client=True, httpx_settings={"timeout": timeout_seconds}) as client,
    ):
        yield client


@contextmanager
def polling_for_cancel(interrupt: Callable[[], None]) -> Iterator[None]:
    """Poll the server while the block runs; call `interrupt` on a cancellation or suspension.

    All waits are interrupted first. A thread polls, so a hanging server does not block the run.
    """
    if _run_id() is None:
        yield
        return
    over, lock = threading.Event(), threading.Lock()

    def poll() -> None:
        while not over.wait(POLL_SECONDS * random.uniform(0.8, 1.2)):
            if not _is_ended_at_server(logging.DEBUG):
                continue
            with lock:  # never after the block has ended
                if not over.is_set():
                    reported = "suspended" if STOP.suspended is not None else "being cancelled"
                    logger.warning("Prefect's server reports that the run is %s", reported)
                    if not STOP.interrupted:  # otherwise a signal came first
                        STOP.cancelled = True
                        STOP.set()
                        interrupt()
            return

    # The server's URL is in Prefect's settings, which live in the context.
    thread = threading.Thread(
        target=copy_context().run, args=(poll,), name="cancel-heard", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        with lock:
            over.set()


def returning_cancelled_state(call: Callable[..., _T]) -> Callable[..., _T]:
    """Wrap a task's function so that a cancellation ends the task as Cancelled.

    Otherwise, Prefect would report the exception as a crash.
    """

    @functools.wraps(call)
    def carried_out(*args: Any, **kwargs: Any) -> Any:
        from prefect.states import Cancelled as CancelledState

        try:
            return call(*args, **kwargs)
        except BaseException as error:
            # Without a signal, a wait is only interrupted if a different part of the run failed or
            # was cancelled.
            if not (isinstance(error, Cancelled) and not STOP.interrupted) and not is_cancel(error):
                raise
            if STOP.cause is None or isinstance(STOP.cause, Cancelled):
                STOP.cause = error
            return CancelledState(message="The run was cancelled, or another part of it failed.")

    return carried_out


def reraising_cancel(call: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call a task wrapped by returning_cancelled_state(), and re-raise its cancellation."""
    from prefect import State

    result = call(*args, **kwargs)
    if isinstance(result, State) and result.is_cancelled():
        raise STOP.cause or Cancelled()
    return result
