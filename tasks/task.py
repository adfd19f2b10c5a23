"""Prefect's task decorator, without importing Prefect until a task runs.

Importing Prefect takes two seconds, and `nodesweep plan` runs no task: it calls the plain functions
of these modules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any

from nodesweep.tasks.cancelling import reraising_cancel, returning_cancelled_state

logger = logging.getLogger("nodesweep.board")
if TYPE_CHECKING:
    from prefect import task
else:

    def task(**options: Any) -> Callable[[Callable[..., Any]], LazyTask]:
        """Return a decorator for a task; `options` are those of Prefect's decorator.

        Prefect's result cache is off: names derive from content, so a repeated task finds existing
        objects itself, and the cache would only hide that they are gone.
        """
        return lambda function: LazyTask(function, options)


@contextmanager
def failures_as_warnings(what: str) -> Iterator[None]:
    """Log that `what` can't be shown in Prefect if anything fails inside the block.

    A busy or unreachable server fails no sweep: its files contain everything.
    """
    try:
        yield
    except Exception as error:
        logger.warning("%s can't be shown in Prefect: %s", what, error)


class LazyTask:
    """A Prefect task, created when it is first called, submitted or inspected."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self._function, self._options = function, options

    @cached_property
    def _task(self) -> Any:
        import prefect
        from prefect.cache_policies import NO_CACHE

        options = {"cache_policy": NO_CACHE, **self._options}
        return prefect.task(**options)(returning_cancelled_state(self._function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task; re-raise a cancellation that ended it."""
        return reraising_cancel(self._task, *args, **kwargs)

    @property
    def fn(self) -> Callable[..., Any]:
        """The plain function."""
        return self._function

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of Prefect's task, such as submit or name."""
        if name.startswith("_"):  # Python's own lookups, maybe before the task exists
            raise AttributeError(name)
        return getattr(self._task, name)
