"""End a cancelled flow as Cancelled at any stage, and a suspended flow as Suspended."""

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

from nodesweep.flows.stages.signals import Ending, first_sigterm_only
from nodesweep.polling import STOP, Clock
from nodesweep.tasks.cancelling import (
    announce_suspension,
    has_deployment,
    is_cancel,
    polling_for_cancel,
    state_at_server,
    wait_for_server,
)
from nodesweep.tasks.task import failures_as_warnings

logger = logging.getLogger("nodesweep.flow")
_SERVER_SECONDS = 900.0
"""Maximum wait for an unreachable server; shorter than the reaper's minimum grace period."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


def cancellable(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a flow's function so that the flow ends as Cancelled or Suspended on request.

    The request comes from Prefect's worker or server, or is a signal to a command. The function
    then raises an exception, e.g. polling.Cancelled during a wait, or an error because jobs could
    not be stopped, which Prefect would record as a crash or a failure. STOP.cause keeps that
    exception for the command.
    """

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        STOP.clear()
        with first_sigterm_only() as ending:
            try:
                ending.signals.release()
                with polling_for_cancel(ending.interrupt):
                    return _retry_after_lost_lease(function, *args, **kwargs)
            except BaseException as error:
                STOP.set()
                if not _is_ended(ending, error):
                    raise
                return _end_state(ending, error)

    # Prefect would resolve annotation strings in this module; these are evaluated already
    run.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
    return run


def _is_ended(ending: Ending, error: BaseException) -> bool:
    """Return True if the run was cancelled or suspended, whatever error that caused."""
    if isinstance(error, Pause | KeyboardInterrupt):
        return is_cancel(error)
    if STOP.cancelled or (STOP.interrupted and not has_deployment()):
        return True
    return ending.terminated and is_cancel(error)


def _end_state(ending: Ending, error: BaseException) -> Any:
    """Return the state of a cancelled or suspended run, or raise Prefect's exception."""
    if isinstance(error, Exception):
        logger.error("cancelling the run caused an error: %s", error)
    if STOP.suspended is not None:
        logger.warning(
            "the run was suspended; its jobs were stopped or left running, as set by"
            " sweep.on_cancel. Resume the run to continue its sweep"
        )
        if has_deployment():  # other runs send no heartbeats
            with failures_as_warnings("the suspension"):
                announce_suspension()
        raise Pause(state=STOP.suspended) from error
    if not (ending.terminated and has_deployment()):
        STOP.cause = error
        return CancelledState(message=f"Cancelled. {error}".strip())
    if isinstance(error, TerminationSignal):
        raise error
    # the worker waits for this, and sets the run to Cancelled
    raise TerminationSignal(signal.SIGTERM) from error


def _retry_after_lost_lease(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a flow's function, and call it again if Prefect stops it because of a lost lease.

    A lease can't be renewed while the server is unreachable. The second call continues the work of
    the first, as a retried run does. The slot in the deployment's concurrency limit is lost, but
    stopping the run would leave its jobs unattended.
    """
    try:
        return function(*args, **kwargs)
    except asyncio.CancelledError:  # also the base of Prefect's own exception
        if STOP.interrupted or STOP.cancelled:
            raise
        STOP.clear()
        logger.warning(
            "Prefect's server did not renew this run's slot in the concurrency limit of its "
            "deployment, so another run may start. This one continues once the server responds"
        )
        if not wait_for_server(Clock(), _SERVER_SECONDS):
            raise
    return function(*args, **kwargs)


def named(name: str | Callable[[], str]) -> Callable[[], str]:
    """Return a `flow_run_name` function that also ends a run cancelled before it began.

    If a run is cancelled just as its process starts, the process is not notified, and Prefect
    refuses to set the run to Running. The process would fail, and the run would stay Cancelling
    until the server ends it after 300 s. Prefect calls the function that is returned here before it
    tries to set the run to Running.
    """

    def of_run() -> str:
        _end_where_cancelled()
        return name.format(**flow_run.parameters) if isinstance(name, str) else name()

    return of_run


def _end_where_cancelled() -> None:
    """End a deployment's run that is Cancelling or Cancelled before its function is called.

    Its cancellation hooks are called, because a retried run may have earlier jobs.

    Raises:
        Abort: The run was cancelled.
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
        logger.error("cancelling the run caused an error: %s", error)
    _abort(run.id, state)


def _abort(run: Any, state: Any) -> NoReturn:
    message = "cancelled before it began"
    if state.is_cancelling():
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run, CancelledState(message=message), force=True)
    raise Abort(message)
