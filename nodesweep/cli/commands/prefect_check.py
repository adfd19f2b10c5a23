"""The doctor's check that Prefect's server accepts runs and will not cause problems later.

python -m nodesweep.cli.commands.prefect_check     # prints state, text and remedy as JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx

ANSWER_SECONDS, _FURTHER_SECONDS = 10.0, 3.0
"""Timeouts of the first call, which shows whether there is a server, and of the later calls."""
_CANCELLING_SECONDS = 60.0
"""Time within which a cancelled run's process is killed; the run's hook may still wait for jobs."""
_POOL = "nodesweep"  # as in prefect.yaml
_LEASES_IN_MEMORY = "prefect.server.concurrency.lease_storage.memory"
_LEASES_IN_FILES = "prefect.server.concurrency.lease_storage.filesystem"


@dataclass(frozen=True)
class Problem:
    """A problem; `is_blocking` is True if it prevents all runs, not only deployment runs."""

    text: str
    remedy: str
    is_blocking: bool = False


def check_prefect_server() -> tuple[Literal["ok", "warning", "missing"], str, str]:
    """Return the state, text and remedy of the check."""
    try:
        from prefect.settings import get_current_settings

        settings = get_current_settings()
    except Exception as error:  # Prefect's import can raise anything for an invalid setting
        words = " ".join(str(error).split())
        return "missing", f"invalid PREFECT_ setting: {words}", "correct or unset it"
    if settings.api.url is None:
        return _own_server(settings)
    where = _without_password(str(settings.api.url))
    with _client(settings) as client:
        version, is_polled, problems = _examine(client)
    if not problems:
        polled = f"; a worker polls {_POOL}" if is_polled else ""
        return "ok", f"{where}, {version or 'version unknown'}{polled}", ""
    state: Literal["warning", "missing"] = (
        "missing" if any(problem.is_blocking for problem in problems) else "warning"
    )
    text = "; ".join(problem.text for problem in problems)
    return state, f"{where}: {text}", "; ".join(problem.remedy for problem in problems)


def _own_server(settings: Any) -> tuple[Literal["ok", "missing"], str, str]:
    from nodesweep.cli.ephemeral_prefect import home_problem

    if error := home_problem(settings):
        why = error.strerror or error
        remedy = "set PREFECT_HOME to a writable folder, or PREFECT_API_URL to a server"
        return "missing", f"{settings.home} can't be written ({why})", remedy
    text = f"no server is configured; a run starts its own, with its database in {settings.home}"
    return "ok", text, ""


def _client(settings: Any) -> httpx.Client:
    """Return a client that authenticates like Prefect's own, but does not retry."""
    import httpx

    key, login = settings.api.key, settings.api.auth_string
    user, _, password = login.get_secret_value().partition(":") if login else ("", "", "")
    return httpx.Client(
        base_url=str(settings.api.url),
        headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else None,
        auth=(user, password) if login else None,
        timeout=ANSWER_SECONDS,
    )


def _examine(client: httpx.Client) -> tuple[str | None, bool, list[Problem]]:
    """Return the server's version, True if a worker is known to poll the pool, and the problems.

    The version is None if the server does not report it.
    """
    import httpx

    try:
        stuck = list(_stuck_in_cancelling(client))
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (401, 403):
            words = f"the server refused the credentials (HTTP {error.response.status_code})"
            remedy = (
                "export PREFECT_API_AUTH_STRING with the server's password (docs/production.md)"
            )
            return None, False, [Problem(words, remedy, is_blocking=True)]
        return None, False, [_not_prefect_problem(f"HTTP {error.response.status_code}")]
    except httpx.TimeoutException:
        remedy = "check the server, or unset PREFECT_API_URL"
        words = f"no response within {ANSWER_SECONDS:g} s"
        return None, False, [Problem(words, remedy, is_blocking=True)]
    except httpx.HTTPError as error:
        remedy = "start the server (`make up`), or unset PREFECT_API_URL"
        return None, False, [Problem(f"does not respond ({error})", remedy, is_blocking=True)]
    except (ValueError, TypeError, KeyError):
        return None, False, [_not_prefect_problem("unexpected response")]
    version: str | None = None
    found: list[Problem] = []
    # Prefect Cloud lacks the first two endpoints, and other server versions may lack them, too
    with suppress(httpx.HTTPError, ValueError, TypeError, KeyError):
        version = str(_request(client, "GET", "/admin/version").json())
        found += _version_problems(version)
    with suppress(httpx.HTTPError, ValueError, TypeError, KeyError):
        settings = _request(client, "GET", "/admin/settings").json()
        found += _lease_problems(settings["server"]["concurrency"]["lease_storage"])
    is_polled = False
    with suppress(httpx.HTTPError, ValueError, TypeError):
        workers = list(_worker_problems(client))
        is_polled = not workers
        found += workers
    return version, is_polled, found + stuck


def _request(client: httpx.Client, method: str, path: str, **body: Any) -> httpx.Response:
    answer = client.request(method, path, json=body or None, timeout=_FURTHER_SECONDS)
    answer.raise_for_status()
    return answer


def _not_prefect_problem(words: str) -> Problem:
    return Problem(
        f"this is not a Prefect API ({words})", "correct PREFECT_API_URL", is_blocking=True
    )


def _version_problems(version: str) -> Iterator[Problem]:
    from prefect import __version__

    theirs, ours = (tuple(map(int, each.split(".")[:2])) for each in (version, __version__))
    if theirs[0] != ours[0]:
        text = f"the server is Prefect {version}, but this is {__version__}"
        yield Problem(text, f"use a Prefect {ours[0]} server", is_blocking=True)
    elif theirs < ours:
        text = f"the server is Prefect {version}, older than {__version__} here"
        yield Problem(text, "upgrade the server first")


def _lease_problems(storage: str) -> Iterator[Problem]:
    if storage == _LEASES_IN_MEMORY:
        yield Problem(
            "the server keeps concurrency-limit leases in memory: after a restart, deployment "
            "runs lose their slots, and some slots stay taken",
            f"start it with PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE={_LEASES_IN_FILES}",
        )


def _worker_problems(client: httpx.Client) -> Iterator[Problem]:
    """Yield a problem if no worker polls the pool; raise HTTPError if there is no such pool."""
    online = {"status": {"any_": ["ONLINE"]}}
    path = f"/work_pools/{_POOL}/workers/filter"
    if not _request(client, "POST", path, workers=online, limit=1).json():
        yield Problem(
            f"no worker polls the pool {_POOL}, so deployment runs wait",
            "start one: make up, or the worker's container",
        )


def _stuck_in_cancelling(client: httpx.Client) -> Iterator[Problem]:
    cancelling = {"state": {"type": {"any_": ["CANCELLING"]}}}
    answer = client.post("/flow_runs/filter", json={"flow_runs": cancelling, "limit": 50})
    answer.raise_for_status()
    now = datetime.now(UTC)
    with suppress(KeyError, ValueError):  # by the server's clock, if reported
        now = parsedate_to_datetime(answer.headers["Date"])
    before = now - timedelta(seconds=_CANCELLING_SECONDS)
    stuck = [
        f"{run['name']} ({run['id']})"
        for run in answer.json()
        if datetime.fromisoformat(run["state"]["timestamp"]) < before
    ]
    if stuck:
        yield Problem(
            f"runs have been Cancelling for over {_CANCELLING_SECONDS:g} s: {', '.join(stuck)}",
            "stop their jobs: nodesweep stop SWEEP_ID; the server ends the runs after 300 s, or set"
            " them to Cancelled (docs/ending.md)",
        )


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


if __name__ == "__main__":
    print(json.dumps(check_prefect_server()))
