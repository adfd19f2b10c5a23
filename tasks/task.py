"""The decorator of every task: Prefect's own, without Prefect until the task runs.

Importing Prefect takes two seconds, and `nodesweep plan` runs no task: it calls the plain functions
of the modules that have some.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any

from nodesweep.tasks.cancelling import cancelled_as_state, raising_cancelled

if TYPE_CHECKING:
    from prefect import task
else:

    def task(**options: Any) -> Callable[[Callable[..., Any]], LazyTask]:
        """@task(name=…, …) with the options of Prefect's decorator.

        No task has a result that is taken in place of doing it: names are computed from content, so
        doing it again finds what is there, and Prefect's cache would only hide it.
        """
        return lambda function: LazyTask(function, options)


class LazyTask:
    """A task of Prefect's that is made when it is first called, submitted or looked at."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self._function, self._options = function, options

    @cached_property
    def _task(self) -> Any:
        import prefect
        from prefect.cache_policies import NO_CACHE

        options = {"cache_policy": NO_CACHE, **self._options}
        return prefect.task(**options)(cancelled_as_state(self._function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return raising_cancelled(self._task, *args, **kwargs)

    @property
    def fn(self) -> Callable[..., Any]:
        """The plain function."""
        return self._function

    def __getattr__(self, name: str) -> Any:
        """submit, name and all else that Prefect's task has."""
        if name.startswith("_"):  # of Python's own, which may ask before there is a task
            raise AttributeError(name)
        return getattr(self._task, name)
