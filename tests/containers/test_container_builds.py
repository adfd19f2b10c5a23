"""The emulated CodeBuild with a container builder: the project's buildspec, a real registry, and
ECR's responses."""

from __future__ import annotations

import re
import shutil
import time
import urllib.request
import uuid

import pytest

from infra.local.tests.platform_client import wait_until
from nodesweep.tasks.image.packages import read_requirements, write_layer
from sagemaker_emulator.engine.container.registry import MANIFEST_TYPES
from tests.containers.container_bench import (
    IMAGE_CONTEXT,
    REPOSITORY,
    assert_completed,
    build_log,
    facts,
    run_build,
    run_job,
    start_build,
    tiny_context,
    wait_for_build,
)

pytestmark = [pytest.mark.slow, pytest.mark.containers]


def digest_in_ecr(platform, tag):
    ids = [{"imageTag": tag}]
    return platform.ecr.describe_images(repositoryName=REPOSITORY, imageIds=ids)["imageDetails"][0][
        "imageDigest"
    ]


def registry(platform):
    """The registry's address in ECR's responses."""
    uri = platform.ecr.describe_repositories(repositoryNames=[REPOSITORY])["repositories"][0][
        "repositoryUri"
    ]
    return uri.removesuffix(f"/{REPOSITORY}")


@pytest.fixture
def context(tmp_path):
    return tiny_context(tmp_path)


def test_ecr_points_to_a_registry_that_answers(platform):
    assert re.fullmatch(r"127\.0\.0\.1:\d+", registry(platform))
    data = platform.ecr.get_authorization_token()["authorizationData"][0]
    assert data["proxyEndpoint"] == f"http://{registry(platform)}"
    url = f"{data['proxyEndpoint']}/v2/"
    wrong_login = urllib.request.Request(url, headers={"Authorization": "Basic d3Jvbmc6b25l"})
    for request in (url, wrong_login):  # it is any user's
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200


def test_pushed_digest_is_ecrs_and_the_registrys(platform, context):
    build = run_build(platform, context, "digest")
    assert build["buildStatus"] == "SUCCEEDED", build_log(platform, build)
    url = f"http://{registry(platform)}/v2/{REPOSITORY}/manifests/digest"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Accept": MANIFEST_TYPES})
    ) as answer:
        assert answer.headers["Docker-Content-Digest"] == digest_in_ecr(platform, "digest")


def test_phases_and_log_are_the_buildspecs(platform, context):
    build = run_build(platform, context, "phases")
    names = [phase["phaseType"] for phase in build["phases"]]
    assert names[3:] == [
        "DOWNLOAD_SOURCE",
        "INSTALL",
        "PRE_BUILD",
        "BUILD",
        "POST_BUILD",
        "FINALIZING",
        "COMPLETED",
    ]
    log = build_log(platform, build)
    assert any(line.startswith("STEP 1/") for line in log)
    assert any(line.startswith("Writing manifest") for line in log)


def test_changed_line_rebuilds_its_layer_only(platform, tmp_path):
    """Of the project's image: what was installed is taken from the cache.

    The builder's cache outlives this test, so the changed line is one that no earlier run has
    written.
    """
    changed = tmp_path / "context"
    shutil.copytree(
        IMAGE_CONTEXT, changed, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache")
    )
    arguments = {"BUILD_ARG_REQUIREMENTS": "requirements-on-dlc.txt"}
    assert run_build(platform, changed, "before", **arguments)["buildStatus"] == "SUCCEEDED"
    with (changed / "train.py").open("a") as file:
        file.write(f"# changed {uuid.uuid4()}\n")
    began = time.monotonic()
    build = run_build(platform, changed, "after", **arguments)
    log = "\n".join(build_log(platform, build))
    print(f"build after a changed line: {time.monotonic() - began:.1f} s")
    assert build["buildStatus"] == "SUCCEEDED"
    assert re.search(r"RUN python -m pip install .*\n--> Using cache", log)
    assert re.search(r"COPY train.py .*\n--> (?!Using)", log)


def test_immutable_tag_is_not_moved(platform, context):
    assert run_build(platform, context, "fixed")["buildStatus"] == "SUCCEEDED"
    digest = digest_in_ecr(platform, "fixed")
    with (context / "train").open("a") as file:
        file.write("# changed\n")
    build = run_build(platform, context, "fixed")
    assert build["buildStatus"] == "FAILED"
    assert any(
        "'fixed' already exists" in line and "immutable" in line
        for line in build_log(platform, build)
    )
    assert digest_in_ecr(platform, "fixed") == digest


def test_mutable_tag_is_moved(platform, context):
    platform.ecr.create_repository(repositoryName="movable", imageTagMutability="MUTABLE")
    uri = f"{registry(platform)}/movable"
    digests = []
    for line in ("# one\n", "# two\n"):
        with (context / "train").open("a") as file:
            file.write(line)
        assert (
            run_build(platform, context, "moved", IMAGE_REPO_URI=uri)["buildStatus"] == "SUCCEEDED"
        )
        found = platform.ecr.describe_images(
            repositoryName="movable", imageIds=[{"imageTag": "moved"}]
        )
        digests.append(found["imageDetails"][0]["imageDigest"])
    assert len(set(digests)) == 2


def test_failing_command_is_named_with_its_phase(platform, context):
    (context / "Dockerfile").write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo on the way && exit 7\n"
    )
    build = run_build(platform, context, "broken")
    phase = next(phase for phase in build["phases"] if phase["phaseType"] == "BUILD")
    assert (build["buildStatus"], phase["phaseStatus"]) == ("FAILED", "FAILED")
    message = phase["contexts"][0]["message"]
    assert message.startswith("Error while executing") and "docker build" in message
    assert "on the way" in build_log(platform, build)
    # on-failure: ABORT
    assert "POST_BUILD" not in [phase["phaseType"] for phase in build["phases"]]
    with pytest.raises(platform.ecr.exceptions.ImageNotFoundException):
        digest_in_ecr(platform, "broken")


def test_packages_of_the_code_are_a_layer_on_an_image_of_the_registry(
    platform, tiny_image, make_config, tmp_path
):
    """As the flow builds it: no buildspec in the context, so the project's. pip is there: no index
    is asked.

    The builder's cache outlives this test, so the file is one that no earlier run has built.
    """
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "requirements.txt").write_text(f"pip  # {uuid.uuid4()}\n")
    config = make_config(training={"source_dir": str(tmp_path / "code")})
    layer = tmp_path / "layer"
    layer.mkdir()
    write_layer(read_requirements(config.training), tiny_image, config.image, layer)
    build = run_build(platform, layer, "layer", buildspec="", BUILD_ARG_BASE_IMAGE=tiny_image)
    log = build_log(platform, build)
    assert build["buildStatus"] == "SUCCEEDED", log[-30:]
    assert any("already satisfied: pip" in line for line in log)
    image = f"{registry(platform)}/{REPOSITORY}@{digest_in_ecr(platform, 'layer')}"
    job = run_job(platform, "on-the-layer", image, "look")
    assert_completed(platform, job)
    assert facts(platform, "on-the-layer", "algo-1")["environment"]["IMAGE_SAYS"] == "hello"


def test_missing_variable_fails_before_the_build(platform, context):
    build = run_build(platform, context, "unnamed", IMAGE_TAG="")
    assert [phase["phaseType"] for phase in build["phases"]][-3:] == [
        "PRE_BUILD",
        "FINALIZING",
        "COMPLETED",
    ]
    assert any("IMAGE_TAG" in line for line in build_log(platform, build))


def test_project_without_a_buildspec_is_told_so(platform, context):
    build = run_build(platform, context, "no-spec", buildspec="buildspec.yml")
    phase = next(phase for phase in build["phases"] if phase["phaseStatus"] == "FAILED")
    only = phase["contexts"][0]
    assert only["statusCode"] == "YAML_FILE_ERROR" and "buildspec.yml" in only["message"]


def test_stopped_build_ends_what_it_runs(platform, context):
    (context / "Dockerfile").write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo sleeping-now && sleep 3000\n"
    )
    build_id = start_build(platform, context, "stopped")

    def is_at_work():
        build = platform.codebuild.batch_get_builds(ids=[build_id])["builds"][0]
        return build["currentPhase"] == "BUILD" and "sleeping-now" in build_log(platform, build)

    wait_until(is_at_work, 180)
    platform.codebuild.stop_build(id=build_id)
    began = time.monotonic()
    assert wait_for_build(platform, build_id)["buildStatus"] == "STOPPED"
    assert time.monotonic() - began < 1000  # of the 3,000 s that it would sleep
