"""A platform's clients, and the retries of its calls.

This module imports boto3 only when a client is requested, because `nodesweep plan` imports it
without making calls.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import is_transient, retry_transient
from nodesweep.polling import Clock

logger = logging.getLogger("nodesweep.platform")

SHORT_PAUSES_SECONDS = (2.0, 4.0, 8.0)
TASK_OPTIONS: dict[str, Any] = {
    "retries": len(SHORT_PAUSES_SECONDS),
    "retry_delay_seconds": list(SHORT_PAUSES_SECONDS),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": retry_transient,
}
"""Options of every task that calls a platform."""
OUTAGE_PAUSES_SECONDS = (2.0, 4.0, 8.0, 16.0, 32.0, *(60.0,) * 9)
PATIENT_TASK_OPTIONS: dict[str, Any] = TASK_OPTIONS | {
    "retries": len(OUTAGE_PAUSES_SECONDS),
    "retry_delay_seconds": list(OUTAGE_PAUSES_SECONDS),
}
"""Options of tasks that are called while jobs run and cost money.

They survive an outage of about 10 minutes: 6 to 15 minutes, because jitter multiplies each pause by
0.63 to 1.5. boto3's own retries add to this.
"""
OUTAGE_JITTER = (0.63, 1.5)  # the range that retry_jitter_factor 0.5 gives in Prefect
_P = ParamSpec("_P")
_T = TypeVar("_T")


def patient(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a call made for every job of a sweep, to retry it as PATIENT_TASK_OPTIONS does.

    The call is not a task, because a task run adds about 20 KB to Prefect's database and takes 20
    to 70 ms, and users do not care about polls. Permanent errors are raised immediately, others
    after the last attempt.
    """
    return _repeated(call, lambda: OUTAGE_PAUSES_SECONDS)


def persistent(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a call that does not need Prefect, to retry it as TASK_OPTIONS does."""
    return _repeated(call, lambda: SHORT_PAUSES_SECONDS)


def _repeated(call: Callable[_P, _T], pauses: Callable[[], tuple[float, ...]]) -> Callable[_P, _T]:
    @wraps(call)
    def tried(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for pause in pauses():
            try:
                return call(*args, **kwargs)
            except Exception as error:
                if not is_transient(error):
                    raise
                seconds = pause * random.uniform(*OUTAGE_JITTER)
                logger.warning(
                    "%s: %s; retrying in %.0f s",
                    call.__name__.replace("_", " "),
                    error,
                    seconds,
                )
            Clock().sleep(seconds)
        return call(*args, **kwargs)

    return tried


@lru_cache(maxsize=64)
def aws_client(service: str, platform: PlatformConfig, quick: bool = False) -> Any:
    """Return a client of `service`, cached so that connections are reused; it is thread-safe.

    The client's calls raise the errors listed in client_of(). For a local platform with its own
    keys, this function also raises the errors of local_session().

    Args:
        service: the AWS service's boto3 name.
        platform: the config's platform.
        quick: give up after seconds rather than minutes, for optional queries.
    """
    from nodesweep.aws.clients import make_client

    return make_client(service, platform, quick)
