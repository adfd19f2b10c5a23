"""A cancel: whether somebody ended the run, heard from Prefect's server itself, and the state of a
task that it ends.

Under a worker a cancel comes as SIGTERM. The worker gives up listening for cancels once the server
has been away for about 25 s (PrefectHQ/prefect#20219), so a run asks for its own state, too. A run
that somebody suspends gets no signal: Prefect ends it at its next task, and a wait for jobs may be
hours away from that.
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

from nodesweep.tasks.polling import STOP, Cancelled, Clock, intervals

logger = logging.getLogger("nodesweep.cancelling")
_T = TypeVar("_T")
ASK_SECONDS = 5.0
"""Between two questions for the run's state."""
_ANSWER_SECONDS, _TRIES = 5.0, 2
"""How long one answer is waited for, and how often it is asked where a signal has come: 30 s after
that the worker kills the process.
"""


def is_cancel(error: BaseException) -> bool:
    """Return whether somebody ended the run on purpose, and not its worker, its machine or an
    error.

    Under a worker SIGTERM means either; then the run's state at the server tells: Cancelling, or
    still Running.
    """
    from prefect.exceptions import CancelledRun, Pause, TerminationSignal

    if isinstance(error, Pause):  # what Prefect raises in a task of a suspended run
        STOP.cancelled, STOP.suspended = True, STOP.suspended or error.state
    if STOP.cancelled or isinstance(error, KeyboardInterrupt):
        return True
    if not isinstance(error, Cancelled | CancelledRun | TerminationSignal):
        return False
    if has_deployment():
        STOP.cancelled = _is_ended_at_server(logging.WARNING, _TRIES)
        return STOP.cancelled
    return True


def has_deployment() -> bool:
    """Return whether a worker carries out the run, and not a command."""
    from prefect.runtime import deployment

    return deployment.id is not None


def _run_id() -> str | None:
    from prefect.runtime import flow_run

    run: str | None = flow_run.id
    return run


def _is_ended_at_server(level: int, tries: int = 1) -> bool:
    """Return whether the server says that the run is cancelled, paused or suspended; what goes
    wrong is logged at this level.
    """
    run = _run_id()
    state = None if run is None else state_at_server(UUID(run), level, tries)
    if state is None:
        return False
    if state.is_paused() and state.name == "Suspended":
        STOP.suspended = state
    return bool(state.is_cancelling() or state.is_cancelled() or state.is_paused())


def state_at_server(run: UUID, level: int, tries: int = 1) -> Any:
    """The run's state; None where the server does not say it, which is logged at this level."""
    for _ in range(tries):
        try:
            return _read_state(run)
        except Exception as error:  # a server that does not answer has cancelled nothing either
            logger.log(level, "Prefect does not say whether the run was cancelled: %s", error)
    return None


def wait_for_server(clock: Clock, seconds: float) -> bool:
    """Wait until Prefect's server says the run's state; False where it does not within so long."""
    run, deadline = _run_id(), clock.monotonic() + seconds
    for pause in intervals(1.0, 15.0):
        if run is None or state_at_server(UUID(run), logging.DEBUG) is not None:
            return True
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(pause)
    return False


def _read_state(run: UUID) -> Any:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    # Prefect's own retries would make minutes of one answer.
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings={"timeout": _ANSWER_SECONDS}) as client,
    ):
        return client.read_flow_run(run).state


@contextmanager
def cancel_heard(interrupt: Callable[[], None]) -> Iterator[None]:
    """Inside, ask the server every few seconds whether the run is being cancelled or suspended.
    Then end every wait, and call `interrupt`.

    A thread asks, so that a server that hangs holds up nothing else.
    """
    if _run_id() is None:
        yield
        return
    over, lock = threading.Event(), threading.Lock()

    def listen() -> None:
        while not over.wait(ASK_SECONDS * random.uniform(0.8, 1.2)):
            if not _is_ended_at_server(logging.DEBUG):
                continue
            with lock:  # never after the code inside has ended
                if not over.is_set() and not STOP.interrupted:
                    is_what = "suspended" if STOP.suspended is not None else "being cancelled"
                    logger.warning("Prefect's server says that the run is %s", is_what)
                    STOP.cancelled = True
                    STOP.set()
                    interrupt()
            return

    # the settings that say where the server is are in the context
    thread = threading.Thread(
        target=copy_context().run, args=(listen,), name="cancel-heard", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        with lock:
            over.set()


def cancelled_as_state(call: Callable[..., _T]) -> Callable[..., _T]:
    """Make a task's function end the task as Cancelled where a cancel ends it. Prefect takes what
    is raised for a crash.
    """

    @functools.wraps(call)
    def carried_out(*args: Any, **kwargs: Any) -> Any:
        from prefect.states import Cancelled as CancelledState

        try:
            return call(*args, **kwargs)
        except BaseException as error:
            # A wait that ends although no signal came: something else has failed, or was cancelled.
            if not (isinstance(error, Cancelled) and not STOP.interrupted) and not is_cancel(error):
                raise
            if STOP.cause is None or isinstance(STOP.cause, Cancelled):
                STOP.cause = error
            return CancelledState(message="The run was cancelled, or another part of it failed.")

    return carried_out


def raising_cancelled(call: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call a task of cancelled_as_state(); what ended it is raised again."""
    from prefect import State

    result = call(*args, **kwargs)
    if isinstance(result, State) and result.is_cancelled():
        raise STOP.cause or Cancelled()
    return result
