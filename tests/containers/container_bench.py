"""Runs builds and jobs on a platform with containers and waits for them."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from infra.local.tests.platform_client import job_request, wait_until
from sagemaker_emulator.engine.run.node_files import state_id

BASE_IMAGE = "localhost/nodesweep-base:bookworm"
FILE_SYSTEM = "fs-0123456789abcdef0"
REPOSITORY = "nodesweep"
ROOT = Path(__file__).resolve().parents[2]
IMAGE_CONTEXT = ROOT / "infra" / "image"
BUILDSPEC = (IMAGE_CONTEXT / "buildspec.yml").read_text()
_DEADLINE_SECONDS = 600.0


def tiny_context(folder: Path) -> Path:
    """Create a build context of two files: a Dockerfile and a `train` of a few lines."""
    shutil.copyfile(Path(__file__).with_name("tiny_train.py"), folder / "train")
    (folder / "train").chmod(0o755)
    (folder / "Dockerfile").write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY train /opt/venv/bin/train\nENV IMAGE_SAYS=hello\n"
        "RUN mkdir -p /opt/ml/code && echo of-the-image > /opt/ml/code/note\n"
    )
    return folder


def zipped(context: Path) -> bytes:
    """Return the context as a zip file without caches, with file modes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(context.rglob("*")):
            if path.is_file() and not {"__pycache__", ".mypy_cache"} & set(path.parts):
                archive.write(path, path.relative_to(context))
    return buffer.getvalue()


def run_build(
    platform: SimpleNamespace, context: Path, tag: str, buildspec: str = BUILDSPEC, **more: str
) -> Any:
    """Run a build as the flow does and return its final description."""
    return wait_for_build(platform, start_build(platform, context, tag, buildspec, **more))


def start_build(
    platform: SimpleNamespace, context: Path, tag: str, buildspec: str = BUILDSPEC, **more: str
) -> str:
    """Start a build and return its ID; an empty buildspec selects the project's."""
    platform.s3.put_object(Bucket="source", Key=f"{tag}.zip", Body=zipped(context))
    uri = platform.ecr.describe_repositories(repositoryNames=[REPOSITORY])["repositories"][0][
        "repositoryUri"
    ]
    variables = {
        "IMAGE_REPO_URI": uri,
        "IMAGE_TAG": tag,
        "BUILD_ARG_BASE_IMAGE": BASE_IMAGE,
        **more,
    }
    build = platform.codebuild.start_build(
        projectName="images",
        sourceTypeOverride="S3",
        sourceLocationOverride=f"source/{tag}.zip",
        **({"buildspecOverride": buildspec} if buildspec else {}),
        environmentVariablesOverride=[
            {"name": name, "value": value} for name, value in variables.items()
        ],
    )["build"]
    return str(build["id"])


def wait_for_build(platform: SimpleNamespace, build_id: str) -> Any:
    """Return a build's final description."""

    def over() -> Any:
        found = platform.codebuild.batch_get_builds(ids=[build_id])["builds"][0]
        return found if found["buildComplete"] else None

    return wait_until(over, _DEADLINE_SECONDS)


def build_log(platform: SimpleNamespace, build: Any) -> list[str]:
    """Return the lines of a build's log."""
    stream = build["logs"]["streamName"]
    return messages(platform, build["logs"]["groupName"], stream)


def build_image(platform: SimpleNamespace, context: Path, tag: str, **more: str) -> str:
    """Build an image, which must succeed, and return its URI with ECR's digest."""
    build = run_build(platform, context, tag, **more)
    assert build["buildStatus"] == "SUCCEEDED", build_log(platform, build)[-30:]
    details = platform.ecr.describe_images(repositoryName=REPOSITORY, imageIds=[{"imageTag": tag}])[
        "imageDetails"
    ]
    uri = platform.ecr.describe_repositories(repositoryNames=[REPOSITORY])["repositories"][0][
        "repositoryUri"
    ]
    return f"{uri}@{details[0]['imageDigest']}"


def run_job(
    platform: SimpleNamespace, name: str, image: str, program: str, count: int = 1, **changes: Any
) -> Any:
    """Run a job of the tiny image and return its final description."""
    create_job(platform, name, image, program, count, **changes)
    return wait_for_end(platform, name)


def create_job(
    platform: SimpleNamespace, name: str, image: str, program: str, count: int = 1, **changes: Any
) -> None:
    """Create a job of the tiny image."""
    request = job_request(name, program, **changes)
    request["AlgorithmSpecification"]["TrainingImage"] = image
    if "ResourceConfig" not in changes:
        request["ResourceConfig"]["InstanceCount"] = count
    request["StoppingCondition"] = {"MaxRuntimeInSeconds": 300}
    platform.sagemaker.create_training_job(**request)


def wait_for_end(platform: SimpleNamespace, name: str) -> Any:
    """Return a job's final description."""

    def over() -> Any:
        job = platform.sagemaker.describe_training_job(TrainingJobName=name)
        return job if job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped") else None

    return wait_until(over, _DEADLINE_SECONDS)


def assert_completed(platform: SimpleNamespace, job: Any) -> None:
    """Fail with the job's reason and each node's last lines unless it completed."""
    name, count = job["TrainingJobName"], job["ResourceConfig"]["InstanceCount"]
    said = "\n".join(
        f"--- algo-{node}\n" + "\n".join(log_of(platform, name, f"algo-{node}")[-40:])
        for node in range(1, count + 1)
    )
    assert job["TrainingJobStatus"] == "Completed", f"{job.get('FailureReason')}\n{said}"


def log_of(platform: SimpleNamespace, name: str, host: str) -> list[str]:
    """Return the lines that one node has logged so far."""
    group = "/aws/sagemaker/TrainingJobs"
    try:
        streams = platform.logs.describe_log_streams(
            logGroupName=group, logStreamNamePrefix=f"{name}/{host}-"
        )
    except (
        platform.logs.exceptions.ResourceNotFoundException
    ):  # the log group appears with the platform's first job
        return []
    return [
        line
        for stream in streams["logStreams"]
        for line in messages(platform, group, stream["logStreamName"])
    ]


def messages(platform: SimpleNamespace, group: str, stream: str) -> list[str]:
    """Return the messages of a log stream."""
    events = platform.logs.get_log_events(
        logGroupName=group, logStreamName=stream, startFromHead=True
    )["events"]
    return [event["message"] for event in events]


def facts(platform: SimpleNamespace, name: str, host: str) -> dict[str, Any]:
    """Return the facts that the program `look` logged on one node."""
    line = next(line for line in log_of(platform, name, host) if line.startswith("facts="))
    return dict(json.loads(line.removeprefix("facts=")))


def archive_names(platform: SimpleNamespace, key: str, bucket: str = "results") -> list[str]:
    """Return the names of the files in a .tar.gz."""
    body = platform.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return sorted(member.name for member in archive.getmembers() if member.isfile())


def labelled(state_dir: Path, *command: str) -> list[str]:
    """Return IDs of a platform's containers ("ps", "--all") or networks ("network", "ls")."""
    label = f"label=nodesweep.state={state_id((state_dir / 'engine').resolve())}"
    done = subprocess.run(
        ["podman", *command, "--quiet", "--filter", label],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def is_clean(state_dir: Path) -> bool:
    """Return True if a platform has left neither containers nor networks."""
    return labelled(state_dir, "ps", "--all") == labelled(state_dir, "network", "ls") == []
