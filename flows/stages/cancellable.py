"""A flow that a cancel ends as Cancelled, at whatever stage it is; a suspension as Suspended."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, NoReturn, ParamSpec, TypeVar

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, Pause, TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Cancelled as CancelledState

from nodesweep.flows.stages.signals import Ending, ended_once
from nodesweep.tasks.cancelling import (
    cancel_heard,
    has_deployment,
    is_cancel,
    state_at_server,
    wait_for_server,
)
from nodesweep.tasks.polling import STOP, Clock

logger = logging.getLogger("nodesweep.flow")
_SERVER_SECONDS = 900.0
"""For a server that is away. A reaper spares the jobs meanwhile: its shortest grace is longer."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


def cancellable(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a flow's function hear a cancel or a suspension, from Prefect's worker or from its
    server, and end as Cancelled or Suspended for it. So does a signal to a command.

    Whatever else leaves a flow while it is being cancelled, Prefect takes for a crash or a failure:
    the Cancelled of a wait, jobs that could not be stopped. STOP.cause keeps it for the command.
    """

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        STOP.clear()
        with ended_once() as ending:
            try:
                ending.signals.release()
                with cancel_heard(ending.interrupt):
                    return _past_a_lost_lease(function, *args, **kwargs)
            except BaseException as error:
                STOP.set()
                if not _is_ended(ending, error):
                    raise
                return _ended(ending, error)

    # Prefect looks up names in annotations where `run` is written: these hold none
    run.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
    return run


def _is_ended(ending: Ending, error: BaseException) -> bool:
    """Return True if somebody has ended the run, whichever error that led to."""
    if isinstance(error, Pause | KeyboardInterrupt):
        return is_cancel(error)
    if STOP.cancelled or (STOP.interrupted and not has_deployment()):
        return True
    return ending.terminated and is_cancel(error)


def _ended(ending: Ending, error: BaseException) -> Any:
    """The state of a run that somebody has ended; raises what Prefect knows it by instead."""
    if isinstance(error, Exception):
        logger.error("while the run was being cancelled: %s", error)
    if STOP.suspended is not None:
        logger.warning(
            "the run was suspended: it ends here, and its jobs were stopped, or run on, as"
            " sweep.on_cancel says. Resume goes on with its sweep"
        )
        raise Pause(state=STOP.suspended) from error
    if not (ending.terminated and has_deployment()):
        STOP.cause = error
        return CancelledState(message=f"Cancelled. {error}".strip())
    if isinstance(error, TerminationSignal):
        raise error
    # the worker waits for it, and says that the run is Cancelled
    raise TerminationSignal(signal.SIGTERM) from error


def _past_a_lost_lease(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a flow's function; where Prefect ends it for a lease that could not be renewed, while
    the server was away, call it again: as a retried run does, it goes on with what it has begun.

    The place in the deployment's limit is lost. To end the run for that would leave its jobs alone.
    """
    try:
        return function(*args, **kwargs)
    except asyncio.CancelledError:  # Prefect's own is one
        if STOP.interrupted or STOP.cancelled:
            raise
        STOP.clear()
        logger.warning(
            "Prefect's server did not renew the run's place in the concurrency limit of its"
            " deployment: another run may begin beside it. This one goes on once the server answers"
        )
        if not wait_for_server(Clock(), _SERVER_SECONDS):
            raise
    return function(*args, **kwargs)


def named(name: str | Callable[[], str]) -> Callable[[], str]:
    """The `flow_run_name` of a flow, of which a run ends that was cancelled before it began.

    A process that is started for a run which somebody cancels at that moment is not told so, and
    Prefect refuses to set such a run Running. Then its process ends with an error, and the run
    stays Cancelling for the server's 300 s. The name is what Prefect asks us for before that.
    """

    def of_run() -> str:
        _end_where_cancelled()
        return name.format(**flow_run.parameters) if isinstance(name, str) else name()

    return of_run


def _end_where_cancelled() -> None:
    """End a deployment's run that is Cancelling or Cancelled before its function is called, its
    hooks on a cancel called: a retried run may have jobs from before. Raises Abort then.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if context is None or context.flow is None or run is None or run.deployment_id is None:
        return
    state = state_at_server(run.id, logging.DEBUG)
    if state is None or not (state.is_cancelling() or state.is_cancelled()):
        return
    try:
        for hook in context.flow.on_cancellation_hooks:
            hook(context.flow, run, state)
    except Exception as error:
        logger.error("while the run was being cancelled: %s", error)
    _abort(run.id, state)


def _abort(run: Any, state: Any) -> NoReturn:
    message = "cancelled before it began"
    if state.is_cancelling():
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run, CancelledState(message=message), force=True)
    raise Abort(message)
