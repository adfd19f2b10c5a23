"""Wrap plain functions as Prefect tasks that end as Cancelled if the run is cancelled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE

from nodesweep.tasks.cancelling import reraising_cancel, returning_cancelled_state

logger = logging.getLogger("nodesweep.board")
_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def failures_as_warnings(subject: str) -> Iterator[None]:
    """Log that `subject` can't be shown in Prefect if anything fails inside the block.

    A busy or unreachable server must not fail a sweep, since its files contain everything.
    """
    try:
        yield
    except Exception as error:
        logger.warning("%s can't be shown in Prefect: %s", subject, error)


class CancellableTask(Task[_P, _T]):
    """A Prefect task; calling it re-raises the cancellation that ended it."""

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:  # type: ignore[override]
        """Run the task."""
        return reraising_cancel(super().__call__, *args, **kwargs)


def as_task(name: str, function: Callable[_P, _T], /, **options: Any) -> CancellableTask[_P, _T]:
    """Return the function as a task; `options` are the options of Prefect's decorator.

    Prefect's result cache is disabled. Names derive from content, so a repeated task finds existing
    objects by itself, and the cache would only hide deleted ones.
    """
    call = returning_cancelled_state(function)
    return CancellableTask(call, name=name, cache_policy=NO_CACHE, **options)
