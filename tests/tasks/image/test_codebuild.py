from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import ImageBuildFailed
from nodesweep.polling import Cancelled, Clock
from nodesweep.tasks.image import codebuild
from nodesweep.tasks.image.codebuild import running_build, start, wait
from nodesweep.tasks.image.find import read_context
from tests.tasks.image.image_fakes import counting_clock, make_context


class Builds:
    """A CodeBuild that returns the given builds one after another, then repeats the last."""

    def __init__(self, *builds: dict[str, Any]) -> None:
        self._builds, self.stopped, self._index = builds, [], -1

    def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
        self._index = min(self._index + 1, len(self._builds) - 1)
        return {"builds": [{"id": ids[0], **self._builds[self._index]}]}

    def stop_build(self, id: str) -> None:
        self.stopped.append(id)


class Logs:
    """A CloudWatch Logs with one stream, whose lines arrive in the given portions."""

    def __init__(
        self, *portions: list[str], missing: int = 0, error: str = "ResourceNotFoundException"
    ) -> None:
        self._portions, self._missing, self._error, self.calls = portions, missing, error, 0

    def get_log_events(
        self, startFromHead: bool, nextToken: str = "0", **query: Any
    ) -> dict[str, Any]:
        self.calls += 1
        if self._missing:
            self._missing -= 1
            raise ClientError({"Error": {"Code": self._error, "Message": "no"}}, "GetLogEvents")
        place = int(nextToken)
        lines = self._portions[place] if place < len(self._portions) else []
        token = min(place + 1, len(self._portions))
        return {
            "events": [{"message": f"{line}\n"} for line in lines],
            "nextForwardToken": str(token),
        }


PROJECTS_OWN = "version: 0.2\nphases: {build: {commands: [docker build .]}}\n"
REFUSED = "version: 0.2\nphases: {build: {commands: [env]}}\n"
LOG = {"logs": {"groupName": "g", "streamName": "s"}}
FAILED = {"buildStatus": "FAILED", **LOG}
OURS = {"environment": {"environmentVariables": [{"name": "NODESWEEP_STARTER", "value": "ours"}]}}
RUNNING = {"buildStatus": "IN_PROGRESS", "currentPhase": "BUILD", **LOG, **OURS}
DONE = {"buildStatus": "SUCCEEDED", **LOG}


def test_build_gets_context_tag_and_arguments_also_where_others_may_not_be_listed(
    aws: Callable[[str], Any],
    tmp_path: Path,
    benchmark_config: BenchmarkConfig,
    snapshot: SnapshotAssertion,
) -> None:
    s3, platform = aws("s3"), benchmark_config.platform
    s3.create_bucket(Bucket=platform.bucket)
    asked: dict[str, Any] = {}

    class CodeBuild:
        def list_builds_for_project(self, **_: Any) -> dict[str, Any]:
            raise ClientError(
                {"Error": {"Code": "AccessDeniedException", "Message": "no"}},
                "ListBuildsForProject",
            )

        def batch_get_projects(self, names: list[str]) -> dict[str, Any]:
            assert names == [config.codebuild_project]
            return {"projects": [{"source": {"type": "NO_SOURCE", "buildspec": PROJECTS_OWN}}]}

        def start_build(self, **request: Any) -> dict[str, Any]:
            if request.get("buildspecOverride") == REFUSED:
                raise ClientError(
                    {"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "StartBuild"
                )
            asked.update(request)
            return {"build": {"id": "nodesweep-image:1"}}

    config = make_context(tmp_path).model_copy(update={"base_image": "base:1"})
    (Path(config.context) / "buildspec.yml").write_text("version: 0.2\n")
    context = read_context(config)
    assert (
        start(CodeBuild(), s3, config, platform, context, "repo-uri", "token-1")
        == "nodesweep-image:1"
    )
    assert asked["idempotencyToken"] == "token-1"
    variables = {item["name"]: item["value"] for item in asked["environmentVariablesOverride"]}
    assert (variables["IMAGE_TAG"], variables["BUILD_ARG_BASE_IMAGE"]) == (context.tag, "base:1")
    assert variables["IMAGE_REPO_URI"] == "repo-uri"
    assert variables["NODESWEEP_STARTER"] == "token-1"
    assert asked["buildspecOverride"] == "version: 0.2\n"
    bucket, key = asked["sourceLocationOverride"].split("/", 1)
    assert (
        zipfile.ZipFile(io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())).testzip()
        is None
    )

    asked.clear()
    (Path(config.context) / "buildspec.yml").write_text("# the same\n" + PROJECTS_OWN)
    start(CodeBuild(), s3, config, platform, read_context(config), "repo-uri", "token-2")
    assert asked["idempotencyToken"] == "token-2" and "buildspecOverride" not in asked, (
        "it is the project's own"
    )

    (Path(config.context) / "buildspec.yml").write_text(REFUSED)
    with pytest.raises(ImageBuildFailed) as refused:
        start(CodeBuild(), s3, config, platform, read_context(config), "repo-uri", "token-3")
    assert str(refused.value) == snapshot


def test_a_buildspec_whose_aliases_expand_to_millions_of_values_counts_as_text() -> None:
    """The comparison of two such buildspecs would never end."""
    aliases = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))
    bomb = "\n".join(["a0: &a0 [x]", *aliases])
    assert codebuild._parsed(bomb) == bomb
    assert codebuild._parsed("a: 1 # one") == codebuild._parsed("a:   1")


WANTED = {"IMAGE_REPO_URI": "repo-uri", "IMAGE_TAG": "ctx-1"}


def listed(status: str, **variables: str) -> dict[str, Any]:
    environment = [
        {"name": name, "value": value}
        for name, value in {"OTHER": "1", **WANTED, **variables}.items()
    ]
    return {"buildStatus": status, "environment": {"environmentVariables": environment}}


@pytest.mark.parametrize(
    ("builds", "found"),
    [
        ([], None),
        ([listed("SUCCEEDED"), listed("IN_PROGRESS")], "b:1"),
        (
            [
                listed("FAILED"),
                listed("SUCCEEDED"),
                listed("STOPPED"),
                listed("FAULT"),
                listed("TIMED_OUT"),
            ],
            None,
        ),
        ([listed("IN_PROGRESS", IMAGE_TAG="ctx-2")], None),
        ([listed("IN_PROGRESS", IMAGE_REPO_URI="elsewhere")], None),
        ([{"buildStatus": "IN_PROGRESS", "environment": {}}], None),
    ],
)
def test_only_a_running_build_of_the_same_image_is_taken_over(
    builds: list[dict[str, Any]], found: str | None
) -> None:
    class CodeBuild:
        def list_builds_for_project(self, projectName: str, sortOrder: str) -> dict[str, Any]:
            assert (projectName, sortOrder) == ("images", "DESCENDING")
            return {"ids": [f"b:{place}" for place in range(len(builds))]}

        def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
            assert ids, "CodeBuild refuses an empty list"
            return {
                "builds": [{"id": one, **build} for one, build in zip(ids, builds, strict=True)]
            }

    assert running_build(CodeBuild(), "images", WANTED) == found


def test_wait_returns_when_the_build_succeeds() -> None:
    builds = Builds(RUNNING, RUNNING, DONE)
    wait(builds, Logs(), "b:1", 600, counting_clock(), "ours")
    assert builds.stopped == []


def test_new_lines_of_the_log_are_shown_once_and_a_few_at_a_time(
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    caplog.set_level(logging.INFO)
    wait(
        Builds(RUNNING, RUNNING, DONE),
        Logs(["STEP 1"], [str(n) for n in range(25)]),
        "b:1",
        600,
        counting_clock(),
        "ours",
    )
    said = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("build: ")
    ]
    # 26 lines in the first poll: the last ten of them.
    assert said == snapshot


def test_a_private_key_that_a_build_prints_is_hidden_from_one_look_to_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    portions = (
        ["STEP 1", "-----BEGIN PRIVATE KEY-----"],
        ["MIIEvAIBADAN"],
        ["-----END PRIVATE KEY-----", "STEP 2"],
    )
    with pytest.raises(ImageBuildFailed) as failed:
        wait(
            Builds(RUNNING, RUNNING, FAILED), Logs(*portions), "b:1", 600, counting_clock(), "ours"
        )
    assert "STEP 2" in str(failed.value) and "STEP 1" in str(failed.value)
    for text in (str(failed.value), caplog.text):
        assert "MIIE" not in text and "PRIVATE" not in text


def test_log_that_begins_late_is_followed_from_its_beginning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    wait(
        Builds(RUNNING, RUNNING, DONE),
        Logs(["STEP 1"], missing=1),
        "b:1",
        600,
        counting_clock(),
        "ours",
    )
    assert "build: STEP 1" in caplog.messages


def test_failed_build_names_phase_and_last_lines(snapshot: SnapshotAssertion) -> None:
    phases = [
        {"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": "exit status 1"}]}
    ]
    with pytest.raises(ImageBuildFailed) as refused:
        wait(
            Builds(RUNNING, {**FAILED, "phases": phases}),
            Logs(["pip: no such package"]),
            "b:1",
            9,
            counting_clock(),
            "ours",
        )
    assert str(refused.value) == snapshot


def test_failed_build_whose_log_is_denied_is_still_explained(snapshot: SnapshotAssertion) -> None:
    logs = Logs(missing=9, error="AccessDeniedException")
    with pytest.raises(ImageBuildFailed) as refused:
        wait(Builds(RUNNING, RUNNING, FAILED), logs, "b:1", 600, counting_clock(), "ours")
    assert str(refused.value) == snapshot
    assert logs.calls == 1  # what is denied is not asked for again


def test_build_past_its_deadline_is_stopped_and_its_last_lines_are_told() -> None:
    builds = Builds(RUNNING)
    with pytest.raises(ImageBuildFailed, match=r" BUILD .*\n    Downloading torch"):
        wait(builds, Logs(["Downloading torch"]), "b:1", 60, counting_clock(), "ours")
    assert builds.stopped == ["b:1"]


@pytest.mark.parametrize("waits", [60.0, 0.0])
def test_build_that_another_run_started_is_never_stopped_by_one_that_only_waits_for_it(
    waits: float,
) -> None:
    """The run is cancelled, or past its deadline, but the sweep that started the build still needs
    it."""
    builds = Builds({**RUNNING, **listed("IN_PROGRESS", NODESWEEP_STARTER="theirs")})
    seconds = iter([0.0, 0.0, *[100.0] * 99])
    with pytest.raises(Cancelled if waits else ImageBuildFailed):
        clock = Clock(monotonic=lambda: 0.0 if waits else next(seconds), wait=lambda seconds: True)
        wait(builds, Logs(), "b:1", 60, clock, "ours")
    assert builds.stopped == []


def test_cancelled_wait_stops_the_build() -> None:
    builds = Builds(RUNNING)
    with pytest.raises(Cancelled):
        wait(
            builds,
            Logs(),
            "b:1",
            60,
            Clock(monotonic=lambda: 0.0, wait=lambda seconds: True),
            "ours",
        )
    assert builds.stopped == ["b:1"]
