"""A flow that a cancel ends as Cancelled, at whatever stage it is."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled as CancelledState

from flows.stages.signals import ended_once
from tasks.cancelling import cancel_heard, has_deployment, is_cancel
from tasks.polling import STOP

logger = logging.getLogger("nodesweep.flow")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def cancellable(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a flow's function hear a cancel, from Prefect's worker or from its server, and end as
    Cancelled for it.

    Whatever else leaves a flow while it is being cancelled, Prefect takes for a crash or a failure:
    the Cancelled of a wait, jobs that could not be stopped.
    """

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        STOP.clear()
        with ended_once() as ending:
            try:
                with cancel_heard(ending.interrupt):
                    return function(*args, **kwargs)
            except BaseException as error:
                STOP.set()
                by_worker = ending.terminated and has_deployment()
                if not (STOP.cancelled or (by_worker and is_cancel(error))):
                    raise
                if isinstance(error, Exception):
                    logger.error("while the run was being cancelled: %s", error)
                if not by_worker:
                    return CancelledState(message=f"Cancelled. {error}".strip())
                if isinstance(error, TerminationSignal):
                    raise
                # the worker waits for it, and says that the run is Cancelled
                raise TerminationSignal(signal.SIGTERM) from error

    # Prefect looks up names in annotations where `run` is written: these hold none
    run.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
    return run
