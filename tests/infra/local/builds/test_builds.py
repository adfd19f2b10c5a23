"""CodeBuild: phases, the image in ECR, failures, stop, and timeout."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import client, wait_until
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.tasks.image.codebuild import start as start_build
from nodesweep.tasks.image.find import BuildContext, read_context
from sagemaker_emulator.builds import service
from sagemaker_emulator.builds.source import SourceError, fetch_source
from sagemaker_emulator.s3_objects import S3Location
from tests.tasks.image.image_fakes import make_context

REGISTRY = "000000000000.dkr.ecr.us-east-1.amazonaws.com"
PHASES = [
    "SUBMITTED",
    "QUEUED",
    "PROVISIONING",
    "DOWNLOAD_SOURCE",
    "INSTALL",
    "PRE_BUILD",
    "BUILD",
    "POST_BUILD",
]
PHASES += ["FINALIZING", "COMPLETED"]


def put_source(platform: SimpleNamespace, key: str, dockerfile: str | None) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.py", "print()")
        if dockerfile is not None:
            archive.writestr("Dockerfile", dockerfile)
    platform.s3.put_object(Bucket="results", Key=key, Body=packed.getvalue())
    return f"results/{key}"


def start(platform: SimpleNamespace, location: str, tag: str = "t1", **changes: Any) -> str:
    variables = {"IMAGE_REPO_NAME": "built", "IMAGE_TAG": tag, "BUILD_ARG_BASE": "cpu"}
    build = platform.codebuild.start_build(
        projectName="images",
        sourceLocationOverride=location,
        environmentVariablesOverride=[
            {"name": name, "value": value} for name, value in variables.items()
        ],
        **changes,
    )["build"]
    assert build["buildStatus"] == "IN_PROGRESS"
    return str(build["id"])


def finished(platform: SimpleNamespace, build_id: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        build = platform.codebuild.batch_get_builds(ids=[build_id])["builds"][0]
        return build if build["buildComplete"] else None

    return wait_until(over)


def phases(build: dict[str, Any]) -> dict[str, str | None]:
    return {phase["phaseType"]: phase.get("phaseStatus") for phase in build["phases"]}


def context(build: dict[str, Any], phase: str) -> dict[str, str]:
    return next(item["contexts"][0] for item in build["phases"] if item["phaseType"] == phase)


def test_build_ends_in_ecr_under_its_content_digest(platform: SimpleNamespace) -> None:
    build = finished(platform, start(platform, put_source(platform, "good.zip", "FROM x")))
    assert build["buildStatus"] == "SUCCEEDED"
    assert list(phases(build)) == PHASES
    assert set(phases(build).values()) == {"SUCCEEDED", None}
    digest = platform.images.tags["built", "t1"]
    found = platform.ecr.describe_images(repositoryName="built", imageIds=[{"imageTag": "t1"}])[
        "imageDetails"
    ]
    assert found[0]["imageDigest"] == digest
    assert platform.images.build_arguments == {"BASE": "cpu"}
    repository = platform.ecr.describe_repositories(repositoryNames=["built"])["repositories"][0]
    assert repository["repositoryUri"] == "000000000000.dkr.ecr.us-east-1.amazonaws.com/built"


def test_log(platform: SimpleNamespace) -> None:
    build = finished(
        platform, start(platform, put_source(platform, "logged.zip", "FROM logged"), "t-logged")
    )
    where = {
        "logGroupName": build["logs"]["groupName"],
        "logStreamName": build["logs"]["streamName"],
    }
    lines = [
        event["message"]
        for event in platform.logs.get_log_events(**where, startFromHead=True)["events"]
    ]
    assert where["logGroupName"] == "/aws/codebuild/images"
    assert "building 11 characters" in lines


def test_same_content_again_is_no_error(platform: SimpleNamespace) -> None:
    location = put_source(platform, "again.zip", "FROM again")
    for _ in range(2):
        assert (
            finished(platform, start(platform, location, "t-again"))["buildStatus"] == "SUCCEEDED"
        )


def test_immutable_tag(platform: SimpleNamespace) -> None:
    finished(platform, start(platform, put_source(platform, "one.zip", "FROM one"), "fixed"))
    build = finished(
        platform, start(platform, put_source(platform, "two.zip", "FROM two"), "fixed")
    )
    assert build["buildStatus"] == "FAILED"
    assert (
        "The image tag 'fixed' already exists in the 'built' repository"
        in context(build, "POST_BUILD")["message"]
    )


@pytest.mark.parametrize(
    ("dockerfile", "phase", "code", "message"),
    [
        (
            None,
            "DOWNLOAD_SOURCE",
            "CLIENT_ERROR",
            "train.py",
        ),
        ("BREAK", "BUILD", "COMMAND_EXECUTION_ERROR", "pip install: exit status 1"),
    ],
)
def test_failures(
    platform: SimpleNamespace, dockerfile: str | None, phase: str, code: str, message: str
) -> None:
    build = finished(
        platform, start(platform, put_source(platform, "failing.zip", dockerfile), "f")
    )
    assert build["buildStatus"] == phases(build)[phase] == "FAILED"
    assert context(build, phase)["statusCode"] == code
    assert message in context(build, phase)["message"]
    assert list(phases(build))[-2:] == ["FINALIZING", "COMPLETED"]


def test_missing_source(platform: SimpleNamespace) -> None:
    build = finished(platform, start(platform, "results/absent.zip"))
    assert context(build, "DOWNLOAD_SOURCE")["message"].startswith("NoSuchKey")


def test_stop(platform: SimpleNamespace) -> None:
    build_id = start(platform, put_source(platform, "wait.zip", "WAIT"))
    wait_until(
        lambda: (
            platform.codebuild.batch_get_builds(ids=[build_id])["builds"][0]["currentPhase"]
            == "BUILD"
        )
    )
    platform.codebuild.stop_build(id=build_id)
    build = finished(platform, build_id)
    assert build["buildStatus"] == phases(build)["BUILD"] == "STOPPED"


def test_folder_source_and_project_of_moto(platform: SimpleNamespace) -> None:
    platform.s3.put_object(Bucket="results", Key="context/Dockerfile", Body=b"FROM folder")
    platform.codebuild.create_project(
        name="configured",
        source={"type": "S3", "location": "results/context/"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={
            "type": "LINUX_CONTAINER",
            "image": "aws/codebuild/standard:7.0",
            "computeType": "BUILD_GENERAL1_SMALL",
            "environmentVariables": [
                {"name": "IMAGE_REPO_URI", "value": REGISTRY + "/from-project"}
            ],
        },
        serviceRole="arn:aws:iam::000000000000:role/service-role/builder",
    )
    build = platform.codebuild.start_build(projectName="configured")["build"]
    assert finished(platform, build["id"])["buildStatus"] == "SUCCEEDED"
    assert ("from-project", "latest") in platform.images.tags


def test_folder_source_stays_in_its_folder(platform: SimpleNamespace, tmp_path: Path) -> None:
    for key in (
        "slashes/Dockerfile",
        f"slashes/{tmp_path}/escape",
    ):  # tmp_path begins with a slash of its own
        platform.s3.put_object(Bucket="results", Key=key, Body=b"FROM slashes")
    build = finished(platform, start(platform, "results/slashes/", "slashes"))
    assert build["buildStatus"] == "SUCCEEDED"
    assert not (tmp_path / "escape").exists()


@pytest.mark.parametrize("key", ["climbing/../x", "climbing/link/x"])
def test_key_that_leaves_the_source_folder(
    platform: SimpleNamespace, tmp_path: Path, key: str
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "link").symlink_to(tmp_path)
    platform.s3.put_object(Bucket="results", Key=key, Body=b"1")
    with pytest.raises(SourceError, match="climbing"):
        fetch_source(platform.s3, S3Location("results", "climbing/"), tmp_path / "source")
    platform.s3.delete_object(Bucket="results", Key=key)


def test_registry_of_another_account(platform: SimpleNamespace) -> None:
    uri = {"name": "IMAGE_REPO_URI", "value": "123456789012.dkr.ecr.us-east-1.amazonaws.com/x"}
    build = platform.codebuild.start_build(
        projectName="images",
        sourceLocationOverride=put_source(platform, "foreign.zip", "FROM x"),
        environmentVariablesOverride=[uri],
    )["build"]
    assert (
        "does not belong to the platform's account"
        in context(finished(platform, build["id"]), "PRE_BUILD")["message"]
    )


def test_idempotency_token(platform: SimpleNamespace) -> None:
    location = put_source(platform, "token.zip", "FROM token")
    elsewhere = SimpleNamespace(codebuild=client(platform.endpoint, "codebuild", "eu-west-1"))
    first = start(platform, location, "token", idempotencyToken="one")
    assert start_again(platform, location) == first
    others = [
        start_again(platform, location, projectName="images-2"),
        start_again(elsewhere, location),
    ]
    assert len({first, *others}) == 3, "a token belongs to a project in a region"
    for place, build in ((platform, first), (platform, others[0]), (elsewhere, others[1])):
        finished(place, build)


def start_again(platform: SimpleNamespace, location: str, **changes: str) -> str:
    request = {"projectName": "images", "idempotencyToken": "one", **changes}
    answer = platform.codebuild.start_build(sourceLocationOverride=location, **request)
    return str(answer["build"]["id"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sourceTypeOverride": "GITHUB"}, "sourceTypeOverride is GITHUB"),
        ({"buildspecOverride": "version: 0.2"}, "buildspecOverride has none"),
        ({"sourceLocationOverride": "just-a-bucket"}, "must be a valid S3 source"),
        ({"timeoutInMinutesOverride": 2161}, "less than or equal to 2160"),
    ],
)
def test_refused_requests(platform: SimpleNamespace, changes: dict[str, Any], message: str) -> None:
    request = {"projectName": "images", "sourceLocationOverride": "results/x.zip", **changes}
    with pytest.raises(ClientError, match=message):
        platform.codebuild.start_build(**request)


def test_unknown_builds(platform: SimpleNamespace) -> None:
    answer = platform.codebuild.batch_get_builds(ids=["images:none"])
    assert (answer["builds"], answer["buildsNotFound"]) == ([], ["images:none"])
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        platform.codebuild.stop_build(id="images:none")


def test_builds_of_a_project_are_listed_in_pages(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service._PAGE_SIZE == 100, "as CodeBuild does"
    monkeypatch.setattr(service, "_PAGE_SIZE", 10)
    location = put_source(platform, "listed.zip", "FROM listed")

    def begin(project: str) -> str:
        return str(
            platform.codebuild.start_build(projectName=project, sourceLocationOverride=location)[
                "build"
            ]["id"]
        )

    started = [begin("listed") for _ in range(11)]
    other = begin("other")
    first = platform.codebuild.list_builds_for_project(projectName="listed")
    assert first["ids"] == started[:0:-1]  # newest first
    second = platform.codebuild.list_builds_for_project(
        projectName="listed", nextToken=first["nextToken"]
    )
    assert second["ids"] == started[:1] and "nextToken" not in second
    pages = platform.codebuild.get_paginator("list_builds_for_project").paginate(
        projectName="listed", sortOrder="ASCENDING"
    )
    assert [one for page in pages for one in page["ids"]] == started
    assert platform.codebuild.list_builds_for_project(projectName="other")["ids"] == [other]
    assert platform.codebuild.list_builds_for_project(projectName="nothing").get("ids") == []
    with pytest.raises(ClientError, match=r"InvalidInputException.*Invalid nextToken"):
        platform.codebuild.list_builds_for_project(projectName="other", nextToken="x")
    for build_id in (*started, other):
        platform.codebuild.stop_build(id=build_id)


def test_build_that_a_killed_run_left_is_taken_over_while_it_runs(
    platform: SimpleNamespace, tmp_path: Path, make_config: Callable[..., BenchmarkConfig]
) -> None:
    """`WAIT` builds until it is stopped. No second build starts meanwhile, and a new build starts
    once it has ended."""
    config = make_config(image={"context": str(make_context(tmp_path, "WAIT\n").context)})
    config = config.model_copy(
        update={"platform": config.platform.model_copy(update={"bucket": "results"})}
    )
    context = read_context(config.image)
    other = read_context(make_context(tmp_path / "other", "WAIT other\n"))

    def start_image(context: BuildContext, token: str) -> str:
        uri = f"{REGISTRY}/built"
        return start_build(
            platform.codebuild, platform.s3, config.image, config.platform, context, uri, token
        )

    def listed() -> list[str]:
        return list(
            platform.codebuild.list_builds_for_project(projectName=config.image.codebuild_project)[
                "ids"
            ]
        )

    left = start_image(context, "killed")
    assert start_image(context, "second") == left
    assert listed() == [left]
    foreign = start_image(other, "other")
    assert foreign != left
    platform.codebuild.stop_build(id=left)
    assert finished(platform, left)["buildStatus"] == "STOPPED"
    again = start_image(context, "third")
    assert again not in (left, foreign)
    assert listed() == [again, foreign, left]
    for build_id in (foreign, again):
        platform.codebuild.stop_build(id=build_id)
        finished(platform, build_id)


def test_build_that_failed_is_not_taken_over(
    platform: SimpleNamespace, tmp_path: Path, make_config: Callable[..., BenchmarkConfig]
) -> None:
    config = make_config(
        image={"codebuild_project": "failing-image"}, platform={"bucket": "results"}
    )
    context = read_context(make_context(tmp_path, "BREAK\n"))
    made = []
    for token in ("failing-1", "failing-2"):
        arguments = (config.image, config.platform, context, f"{REGISTRY}/built", token)
        made.append(start_build(platform.codebuild, platform.s3, *arguments))
        assert finished(platform, made[-1])["buildStatus"] == "FAILED"
    assert len(set(made)) == 2


def test_identity_of_the_account(platform: SimpleNamespace) -> None:
    assert client(platform.endpoint, "sts").get_caller_identity()["Account"] == "000000000000"


def test_builds_of_every_project_are_listed(platform: SimpleNamespace) -> None:
    location = put_source(platform, "listed.zip", None)
    ids = [
        platform.codebuild.start_build(projectName=project, sourceLocationOverride=location)[
            "build"
        ]["id"]
        for project in ("first", "second", "first")
    ]
    assert platform.codebuild.list_builds()["ids"][:3] == ids[::-1]
    pages = platform.codebuild.get_paginator("list_builds").paginate(sortOrder="ASCENDING")
    assert [identity for page in pages for identity in page["ids"]][-3:] == ids
    of_second = platform.codebuild.list_builds_for_project(projectName="second")["ids"]
    assert of_second == [ids[1]]
    west = client(platform.endpoint, "codebuild", "us-west-2")
    assert west.list_builds()["ids"] == []
