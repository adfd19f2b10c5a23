"""The CodeBuild API for builds, which run one at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import ACCOUNT_ID, ApiError, JsonService
from sagemaker_emulator.api.validation import RequestValidator
from sagemaker_emulator.builds.execution import BuildExecution
from sagemaker_emulator.builds.record import Build
from sagemaker_emulator.builds.shell import BuildsByCommands
from sagemaker_emulator.builds.source import parse_source_location
from sagemaker_emulator.interfaces import ImageStore
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.state.unsaved import NotSaved

_IDEMPOTENCY_SECONDS = 300
_CLOSE_DEADLINE_SECONDS = 30.0
_PAGE_SIZE = 100
_REFUSED = frozenset({"RetryBuild", "BatchDeleteBuilds", "StartBuildBatch"})
"""Actions for which moto would return its builds instead of the platform's."""

logger = logging.getLogger(__name__)


def invalid_input(message: str) -> ApiError:
    return ApiError("InvalidInputException", message)


class Builds:
    """The builds, the CodeBuild actions on them, and the thread that runs them."""

    def __init__(
        self,
        images: ImageStore,
        clients: ClientFactory,
        store: RecordStore,
        account_id: str = ACCOUNT_ID,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._account_id = account_id
        self._images = images
        self._clients = clients
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._builds: dict[str, Build] = {}
        self._stops: dict[str, threading.Event] = {}
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="builds")

    def service(self) -> JsonService:
        """Return the service for the front end. Projects are handled by moto."""
        return JsonService(
            target_prefix="CodeBuild_20161006",
            signing_name="codebuild",
            actions={
                "StartBuild": self.start,
                "BatchGetBuilds": self.batch_get,
                "ListBuilds": self.list_all,
                "ListBuildsForProject": self.list_for_project,
                "StopBuild": self.stop,
            },
            refused=_REFUSED,
            check=RequestValidator("codebuild").check,
        )

    def load(self) -> None:
        """Load the records. Builds that a killed server left in progress end as FAULT."""
        for build in self._store.load_all(_readable_build):
            self._builds[build.id] = build
            if not build.is_over():
                now = self._clock()
                build.close_phase(
                    "FAULT", now, "INTERNAL_ERROR", "The local platform stopped during the build"
                )
                build.complete("FAULT", now)
                self._store.try_to_save(build.region, build.uuid, record=asdict(build))

    def start(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Queue a build.

        Any project name is accepted. If the project exists in moto, it provides the source and
        variables.
        """
        project = self._project(region, request["projectName"])
        location = request.get("sourceLocationOverride") or project.get("source", {}).get(
            "location"
        )
        self._check_source(request, location)
        variables = _merged_variables(
            project.get("environment", {}).get("environmentVariables", []),
            request.get("environmentVariablesOverride", []),
        )
        with self._lock:
            earlier = self._same_token(
                region, request["projectName"], request.get("idempotencyToken")
            )
            if earlier is not None:
                return {"build": earlier.describe()}
            build = Build(
                region=region,
                project_name=request["projectName"],
                number=1
                + sum(
                    build.project_name == request["projectName"] for build in self._builds.values()
                ),
                source_location=str(location),
                variables=variables,
                start_time=self._clock(),
                timeout_minutes=request.get("timeoutInMinutesOverride")
                or project.get("timeoutInMinutes")
                or 60,
                idempotency_token=request.get("idempotencyToken"),
                account_id=self._account_id,
                buildspec=request.get("buildspecOverride")
                or project.get("source", {}).get("buildspec"),
            )
            build.enter("SUBMITTED", self._clock())
            build.enter("QUEUED", self._clock())
            self._save(build)
            self._builds[build.id] = build
            self._stops[build.id] = threading.Event()
            self._pool.submit(self._run, build)
            return {"build": build.describe()}

    def batch_get(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            found = {asked: self._find(region, asked) for asked in request["ids"]}
            return {
                "builds": [build.describe() for build in found.values() if build is not None],
                "buildsNotFound": [asked for asked, build in found.items() if build is None],
            }

    def list_all(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the build ids of all projects."""
        with self._lock:
            builds = [build for build in self._builds.values() if build.region == region]
        return self._page(builds, request)

    def list_for_project(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the build ids of a project."""
        with self._lock:
            builds = [
                b
                for b in self._builds.values()
                if (b.region, b.project_name) == (region, request["projectName"])
            ]
        return self._page(builds, request)

    @staticmethod
    def _page(builds: list[Build], request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of ids sorted by start time and number. The token is the last id."""
        newest_first = request.get("sortOrder", "DESCENDING") == "DESCENDING"
        ids = [
            build.id
            for build in sorted(
                builds, key=lambda build: (build.start_time, build.number), reverse=newest_first
            )
        ]
        token = request.get("nextToken")
        if token is not None and token not in ids:
            raise invalid_input("Invalid nextToken")
        start = 0 if token is None else ids.index(token) + 1
        page = ids[start : start + _PAGE_SIZE]
        return {"ids": page} | ({"nextToken": page[-1]} if start + _PAGE_SIZE < len(ids) else {})

    def stop(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            build = self._find(region, request["id"])
            if build is None:
                raise ApiError("ResourceNotFoundException", f"Build not found: {request['id']}")
            if not build.is_over():
                self._stops[build.id].set()
            return {"build": build.describe()}

    def in_progress(self) -> list[str]:
        with self._lock:
            return [build.id for build in self._builds.values() if not build.is_over()]

    def close(self) -> None:
        """Stop all builds, and wait for the one that runs."""
        with self._lock:
            for stop in self._stops.values():
                stop.set()
        self._pool.shutdown(wait=False)
        deadline = time.monotonic() + _CLOSE_DEADLINE_SECONDS
        while self.in_progress() and time.monotonic() < deadline:
            time.sleep(0.05)
        with self._lock:
            self._store.save_rest()

    def _run(self, build: Build) -> None:
        def change(apply: Callable[[Build], None]) -> None:
            with self._lock:
                apply(build)
                self._store.try_to_save(build.region, build.uuid, record=asdict(build))

        stop = self._stops[build.id]
        try:
            BuildExecution(
                build, change, self._images, self._clients, stop, clock=self._clock
            ).run()
        except Exception:
            logger.exception("Build %s: its result could not be recorded", build.id)
        with self._lock:
            del self._stops[build.id]

    def _project(self, region: str, name: str) -> dict[str, Any]:
        projects = self._clients("codebuild", region).batch_get_projects(names=[name])["projects"]
        return dict(projects[0]) if projects else {}

    def _check_source(self, request: dict[str, Any], location: str | None) -> None:
        if (kind := request.get("sourceTypeOverride", "S3")) != "S3":
            raise invalid_input(
                f"sourceTypeOverride is {kind}, but the local platform only supports S3 sources."
            )
        has_shell = isinstance(self._images, BuildsByCommands)
        if not has_shell and "docker build" not in request.get("buildspecOverride", "docker build"):
            raise invalid_input(
                "Without containers, the local platform only runs the `docker build` command of a"
                " buildspec, but buildspecOverride has none: add one, or start the platform with"
                " --engine container."
            )
        if not location:
            raise invalid_input(
                "Project source location is required: set sourceLocationOverride to bucket/key.zip."
            )
        try:
            parse_source_location(location)
        except ValueError as error:
            raise invalid_input(str(error)) from error

    def _same_token(self, region: str, project: str, token: str | None) -> Build | None:
        """Return the build that was started with this token in the last five minutes, or None."""
        since, wanted = self._clock() - _IDEMPOTENCY_SECONDS, (region, project, token)
        recent = (build for build in self._builds.values() if build.start_time > since)
        return next(
            (
                build
                for build in recent
                if token and (build.region, build.project_name, build.idempotency_token) == wanted
            ),
            None,
        )

    def _find(self, region: str, id_or_arn: str) -> Build | None:
        build = self._builds.get(id_or_arn.partition(":build/")[2] or id_or_arn)
        return build if build is not None and build.region == region else None

    def _save(self, build: Build) -> None:
        """Save a new build.

        Raises:
            NotSaved: If the build cannot be saved, in which case it does not exist.
        """
        try:
            self._store.save(build.region, build.uuid, record=asdict(build))
        except NotSaved:
            self._store.remove(build.region, build.uuid)
            raise


def _merged_variables(
    project: list[dict[str, str]], override: list[dict[str, str]]
) -> list[dict[str, str]]:
    """Merge overrides into the variables of a project by name.

    Only plaintext variables are allowed, since the platform has no secret store.
    """
    merged = {item["name"]: {"type": "PLAINTEXT", **item} for item in [*project, *override]}
    for item in merged.values():
        if item["type"] != "PLAINTEXT":
            raise invalid_input(
                f"Environment variable {item['name']} has type {item['type']}; only PLAINTEXT is"
                " supported."
            )
    return list(merged.values())


def _readable_build(record: Mapping[str, Any]) -> Build:
    """Return the build with this record.

    Raises:
        TypeError: If the record cannot be described. Other exceptions mean the same.
    """
    build = Build(**record)
    build.describe()
    return build
