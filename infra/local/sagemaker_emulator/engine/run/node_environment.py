"""The environment and command of a node's `train`, merged from image, request and platform.

Only the variables that installers and TLS clients need are taken from the server's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from sagemaker_emulator.engine.host.capacity import omp_threads
from sagemaker_emulator.engine.host.process_tree import MARKER_NODE, MARKER_STATE
from sagemaker_emulator.engine.run.node_files import in_image, in_node, node_folder
from sagemaker_emulator.environment import node_environment_of
from sagemaker_emulator.interfaces import AccessKey, JobSpec, Node

BARRIER_SWITCH = "SM_BOOT_BARRIER"  # set by images whose program waits at the boot barrier
BARRIER_FOLDER = "SM_BOOT_BARRIER_DIR"

_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""Python settings of a node. PYTHONFAULTHANDLER prints the Python stack on a native crash."""
_LONGEST_START_BYTES = 4096
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def brings_own_code(job: JobSpec) -> bool:
    """Return True if the toolkit downloads the job's code instead of running the image's code."""
    value = job.hyperparameters.get("sagemaker_submit_directory")
    if not value:
        return False
    with contextlib.suppress(ValueError):  # some clients omit the JSON quotes
        value = json.loads(value)
    return isinstance(value, str) and value.startswith("s3://")


def has_own_python(job: JobSpec) -> bool:
    """Return True if the job brings code, which must not install packages into the shared image."""
    return job.has_own_command or brings_own_code(job)


def uses_boot_barrier(job: JobSpec, image_environment: Mapping[str, str]) -> bool:
    """Return True if the nodes wait at the boot barrier.

    Only the image's program is known to wait. Any other program would run without a quota.
    """
    own_program = image_environment.get("SAGEMAKER_PROGRAM")
    # As in the toolkit, the environment, in which the job's variables override the image's, takes
    # precedence over the hyperparameter.
    program = job.environment.get("SAGEMAKER_PROGRAM", own_program) or job.hyperparameters.get(
        "sagemaker_program"
    )
    is_own = program == own_program and not has_own_python(job)
    return image_environment.get(BARRIER_SWITCH) == "1" and is_own


def node_environment(
    job: JobSpec,
    node: Node,
    image: Path,
    image_environment: Mapping[str, str],
    vcpus: float,
    endpoint_url: str,
    access_key: AccessKey,
    state_id: str,
    parent_environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment of a node.

    In order of increasing precedence, it consists of variables from `parent_environment` (by
    default, the server's environment), the image's ENV, the request's Environment, and the
    variables that the platform sets.
    """
    parent = os.environ if parent_environment is None else parent_environment
    environment = node_environment_of(parent)
    environment |= {
        "LANG": environment.get("LANG", "C.UTF-8"),
        **_PYTHON,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment["OMP_NUM_THREADS"] = str(omp_threads(vcpus))
    for name, value in (dict(image_environment) | dict(job.environment)).items():
        environment[name] = ":".join(in_node(path, node) for path in value.split(":"))
    environment |= _direct_hosts(environment)
    environment |= _platform_environment(job, node, endpoint_url, access_key)
    environment |= {MARKER_STATE: state_id, MARKER_NODE: f"{job.job_name}/{node.host}"}
    environment["PATH"] = f"{image / 'venv' / 'bin'}:{_SYSTEM_PATH}"
    if has_own_python(job):
        environment["PATH"] = f"{_overlay(node) / 'bin'}:{environment['PATH']}"
    elif uses_boot_barrier(job, image_environment):
        environment[BARRIER_FOLDER] = str(barrier_folder(node))
    return environment


def container_environment(
    job: JobSpec, vcpus: float, endpoint_url: str, access_key: AccessKey, boot_folder: str | None
) -> dict[str, str]:
    """Return the variables that a container gets in addition to the ENV of its image.

    These are the request's Environment and the variables that the platform sets, which take
    precedence.
    """
    environment = {
        **_PYTHON,
        "OMP_NUM_THREADS": str(omp_threads(vcpus)),
        **job.environment,
    }
    environment |= _job_environment(job, endpoint_url, access_key)
    return environment if boot_folder is None else environment | {BARRIER_FOLDER: boot_folder}


def _direct_hosts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return NO_PROXY and no_proxy with loopback added.

    The toolkit downloads the job's code from the platform, which listens on loopback.
    """
    upper, lower = environment.get("NO_PROXY"), environment.get("no_proxy")
    # clients that know both spellings prefer lower case
    hosts_by_name = {"NO_PROXY": upper or lower, "no_proxy": lower or upper}
    return {
        name: f"{hosts},127.0.0.1,localhost" if hosts else "127.0.0.1,localhost"
        for name, hosts in hosts_by_name.items()
    }


def _platform_environment(
    job: JobSpec, node: Node, endpoint_url: str, access_key: AccessKey
) -> dict[str, str]:
    own_folders = {"SAGEMAKER_BASE_DIR": str(node.opt_ml), "HOME": str(node_folder(node) / "home")}
    return own_folders | _job_environment(job, endpoint_url, access_key)


def _job_environment(job: JobSpec, endpoint_url: str, access_key: AccessKey) -> dict[str, str]:
    kind, name = "TRAINING", job.job_name
    if job.processing is not None:
        kind, name = "PROCESSING", job.job_arn.rpartition("/")[2]
    return {
        f"{kind}_JOB_NAME": name,
        f"{kind}_JOB_ARN": job.job_arn,
        "AWS_REGION": job.region,
        "AWS_DEFAULT_REGION": job.region,
        "AWS_ENDPOINT_URL": endpoint_url,
        # read by the toolkit when it downloads sourcedir.tar.gz
        "S3_ENDPOINT_URL": endpoint_url,
        # this key may only call S3, logs and metrics; the caller's keys are not passed on
        "AWS_ACCESS_KEY_ID": access_key.id,
        "AWS_SECRET_ACCESS_KEY": access_key.secret,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def barrier_folder(node: Node) -> Path:
    """Return the folder in which a node's program reports `ready` and waits for `go`."""
    return node_folder(node) / "boot"


def node_command(job: JobSpec, node: Node, image: Path) -> list[str]:
    """Return the command in the request or, if there is none, `train` in the image.

    A job that brings code gets a separate Python per node to install into. Paths of image files in
    the request's command are mapped to the node's copies.
    """
    train = image / "venv" / "bin" / "train"
    if not has_own_python(job):
        return [str(train)]
    python = make_overlay(node, image)
    if not job.has_own_command:
        return [str(python), str(train)]
    return [in_image(word, node) for word in container_command(job, ())]


def container_command(
    job: JobSpec, image_entrypoint: Sequence[str], image_command: Sequence[str] = ()
) -> list[str]:
    """Return the command that SageMaker starts a container with.

    It corresponds to `docker run [--entrypoint …] image train`; a Processing job runs the image's
    command instead of `train`. Arguments in the request replace `train`. As with docker, an entry
    point in the request gets only the arguments in the request.
    """
    if job.container_entrypoint:
        return [*job.container_entrypoint, *job.container_arguments]
    if job.processing is not None:
        return [*image_entrypoint, *(job.container_arguments or image_command)]
    return [*image_entrypoint, *(job.container_arguments or ("train",))]


def _overlay(node: Node) -> Path:
    return node_folder(node) / "python"


def make_overlay(node: Node, image: Path) -> Path:
    """Create a virtual environment on top of the image's, and return the path of its Python.

    The toolkit installs a job's requirements.txt with the pip of the running Python. On AWS that
    changes a disposable container, but here it would change the image for all other nodes and jobs.
    Scripts in the image (pip, torchrun) also run under the node's Python, since they would
    otherwise install into the image and not find the node's packages.
    """
    image_venv = (image / "venv").resolve()
    packages = next((image_venv / "lib").glob("python3.*"))
    overlay = _overlay(node)
    own_packages = overlay / "lib" / packages.name / "site-packages"
    own_packages.mkdir(parents=True)
    scripts = overlay / "bin"
    scripts.mkdir()
    (overlay / "pyvenv.cfg").write_text((image_venv / "pyvenv.cfg").read_text())
    (own_packages / "image.pth").write_text(
        f"import site; site.addsitedir({str(packages / 'site-packages')!r})\n"
    )
    for name in ("python", "python3"):
        (scripts / name).symlink_to((image_venv / "bin" / "python").resolve())
    for script in (image_venv / "bin").iterdir():
        _copy_script(script, image_venv, scripts)
    return scripts / "python"


def _copy_script(script: Path, image_venv: Path, scripts: Path) -> None:
    """Copy a Python script from the image to `scripts`, to run under the Python there."""
    if script.is_symlink() or not script.is_file():
        return
    with script.open("rb") as file:
        first_line = file.readline(_LONGEST_START_BYTES)
        if not first_line.startswith(b"#!"):
            return
        if first_line.rstrip() == b"#!/bin/sh":  # written by pip and uv for long paths; see below
            first_line = file.readline(_LONGEST_START_BYTES)
            file.readline(_LONGEST_START_BYTES)
        if os.fsencode(image_venv / "bin" / "python") not in first_line:
            return
        rest = file.read()
    python = os.fsencode(shlex.quote(str(scripts / "python")))
    copy = scripts / script.name
    # After #!, the kernel accepts neither a long path nor a path with spaces. Python reads the
    # second line as a string.
    copy.write_bytes(b"#!/bin/sh\n'''exec' " + python + b""" "$0" "$@"\n' '''\n""" + rest)
    copy.chmod(0o755)
