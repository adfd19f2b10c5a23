"""Calls to one platform: its clients, and how a call is repeated.

Imports no boto3 until a client is asked for: most of what `nodesweep plan` imports has calls that a
plan does not make.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from nodesweep.configs.models import PlatformConfig
from nodesweep.tasks.errors import is_transient, retry_transient
from nodesweep.tasks.polling import Clock

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
"""Options of tasks that are called while jobs run,
which cost money whether or not somebody looks at them.

An outage is waited out for 10 minutes, 6 to 15 with the jitter (each pause x 0.63 to 1.5), beside
boto3's own tries.
"""
OUTAGE_JITTER = (0.63, 1.5)  # what Prefect makes of retry_jitter_factor 0.5
_P = ParamSpec("_P")
_T = TypeVar("_T")


def patient(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a call that is made for every job of a sweep:
    it waits an outage out as a patient task does.

    But it is no task. A task run takes about 20 KB of Prefect's database and 20 to 70 ms, and one
    that has only looked at something tells nobody anything. Raises what the last try raised, and at
    once what no further try would help.
    """

    return _repeated(call, lambda: OUTAGE_PAUSES_SECONDS)


def persistent(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a call that needs no Prefect: it is repeated as often as a task of TASK_OPTIONS."""
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
                    "%s: %s; trying again in %.0f s",
                    call.__name__.replace("_", " "),
                    error,
                    seconds,
                )
            Clock().sleep(seconds)
        return call(*args, **kwargs)

    return tried


@lru_cache(maxsize=64)
def aws_client(service: str, platform: PlatformConfig, quick: bool = False) -> Any:
    """A client of `service`; clients are thread-safe and kept, so that connections are reused.

    `quick` gives up after seconds rather than minutes: for questions that may stay unanswered. Its
    calls raise what client_of() says. Raises what local_session() does where the keys are the
    platform's own.
    """
    from nodesweep.tasks.clients import make_client

    return make_client(service, platform, quick)
