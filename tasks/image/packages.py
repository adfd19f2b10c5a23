"""The packages that the user's code asks for: its requirements.txt becomes one more layer of the
image, built once.

The SageMaker toolkit installs a requirements.txt that comes with the code on every node at every
start of a job, and those minutes are billed. As a layer it is installed once for its content and
the image below it, and is left out of what is sent with the job (tasks/jobs/source.py), so that the
toolkit finds nothing to install.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from nodesweep.configs.models import BenchmarkConfig, ImageConfig, PlatformConfig
from nodesweep.scaling.rules.rule import Requirements
from nodesweep.tasks.platform import TASK_OPTIONS, aws_client
from nodesweep.tasks.preflight.storage import why_no_push
from nodesweep.tasks.task import task

REQUIREMENTS_FILE = "requirements.txt"
"""The only one that the toolkit installs, at the top of the code."""
_PLACE = "/opt/nodesweep/packages"
_KEPT = "^torch(vision|audio)?=="
_WANTS_TORCH = re.compile(
    r"(?P<package>[\w.-]+) (?P<version>[\w.+!-]+) depends on torch(?:==|<|>|~=| )*(?P<torch>[\d.]+)"
)
_KEPT_TORCH = re.compile(r"\(constraint\) torch(?:<=[\w.+]+,)?==(?P<torch>[\w.+]+)")
"""Both as pip tells of a conflict."""
_INCLUDE = re.compile(r"(?:-[rc][\s=]*|--(?:requirement|constraint)[\s=]+)(?P<file>\S+)")
_OPTION_WITH_PLACE = re.compile(
    r"(?:-[efi][\s=]*|--(?:editable|find-links|index-url|extra-index-url)[\s=]+)(?=\S)"
)
_ARCHIVES = (".whl", ".zip", ".tar.gz")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")  # what pip fills in from its environment
_FILE_URL = re.compile(r"\bfile:\S+")
_INSTALLER_SETTING = "PIP_"


def read_requirements(config: BenchmarkConfig) -> Requirements | None:
    """What the code asks for, None where that is nothing.

    No layer can hold what only the job knows: a package that comes with the code, a variable of the
    job's environment, pip's settings in training.environment.
    """
    if config.training.source_dir is None:
        return None
    folder = Path(config.training.source_dir)
    if not (folder / REQUIREMENTS_FILE).is_file():
        return None
    files, missing = _included_files(folder)
    lines = [(name, line) for name, text in files.items() for line in _lines(text)]
    if not lines:
        return None
    settings = sorted(
        name for name in config.training.environment if name.startswith(_INSTALLER_SETTING)
    )
    reasons = [f"training.environment has {name}, which a build does not know" for name in settings]
    reasons += [f"{name}: {why}" for name, line in lines if (why := _only_in_the_job(line))]
    return Requirements(
        folder / REQUIREMENTS_FILE, files, reasons[0] if reasons else None, tuple(missing)
    )


def unread_requirements(config: BenchmarkConfig, highest: Path) -> Path | None:
    """The requirements.txt that a user may take for the code's, where the code has none: beside the
    entry point, or in the nearest folder above training.source_dir, none above `highest`. One in
    image.context is the image's.
    """
    if config.training.source_dir is None:
        return None
    folder = Path(config.training.source_dir).absolute()
    if (folder / REQUIREMENTS_FILE).exists():
        return None
    beside = (folder / config.training.entry_point).parent
    above = [each for each in folder.parents if highest in (each, *each.parents)]
    places = (each / REQUIREMENTS_FILE for each in (beside, *above))
    found = next((place for place in places if place.is_file()), None)
    is_images = found is not None and found.is_relative_to(config.image.build_context.absolute())
    return None if is_images else found


def write_layer(
    requirements: Requirements, base: str, image: ImageConfig, folder: Path
) -> ImageConfig:
    """Write the build context of the layer on `base` into `folder`;
    returns the section that builds it.

    pip's settings among image.build_args count here, too.
    """
    settings = {
        name: value
        for name, value in image.build_args.items()
        if name.startswith(_INSTALLER_SETTING)
    }
    for name, text in requirements.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "Dockerfile").write_text(_dockerfile(requirements.files, settings))
    layer = {
        "context": str(folder),
        "base_image": base,
        "framework": None,
        "uri": None,
        "build_args": settings,
    }
    return image.model_copy(update=layer)


def _dockerfile(files: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """The base comes as BASE_IMAGE, from which infra/image/buildspec.yml knows where to log in.

    The image's torch stays: it is built for the nodes' accelerators and network. A line that asks
    for another one is an error of pip's, and torchvision without a version is the one that fits.
    """
    lines = ["ARG BASE_IMAGE", "FROM ${BASE_IMAGE}", *(f"ARG {name}" for name in sorted(settings))]
    lines += [f"COPY {json.dumps([name, f'{_PLACE}/{name}'])}" for name in files]
    lines += [
        f"RUN python -m pip list --format=freeze | sed -nE '/{_KEPT}/p' > {_PLACE}/kept.txt",
        (
            f"RUN python -m pip install --no-cache-dir -c {_PLACE}/kept.txt -r"
            f" {_PLACE}/{REQUIREMENTS_FILE}"
        ),
    ]
    return "\n".join(lines) + "\n"


def cure_of_build(said: str) -> str:
    """Return what to do about a layer that can't be built, by its installer's words; "" for nothing
    known. The image's torch stays, so that what wants another one has no place beside it.
    """
    found = _WANTS_TORCH.search(said)
    kept = _KEPT_TORCH.search(said)
    if found is None or kept is None:
        return ""
    package = found["package"]
    return (
        f"{package} {found['version']} goes with torch {found['torch']}, and the image's torch"
        f" {kept['torch']} stays. Name {package} without a version, so that the release that fits"
        f" is taken, or name that release. "
    )


def _included_files(folder: Path) -> tuple[dict[str, str], list[str]]:
    """(requirements.txt and, through -r and -c, what it includes;
    the problem of each that is not in the folder).

    Each path is relative to the file that names it.
    """
    files: dict[str, str] = {}
    missing = []
    pending = [PurePosixPath(REQUIREMENTS_FILE)]
    while pending:
        name = pending.pop()
        if str(name) in files:
            continue
        files[str(name)] = text = (folder / name).read_text(encoding="utf-8", errors="replace")
        for line in _lines(text):
            include = _INCLUDE.match(line)
            if include is None or "://" in include["file"]:
                continue
            found = (folder / name.parent / include["file"]).resolve()
            if not found.is_file() or not found.is_relative_to(folder.resolve()):
                problem = (
                    f"{folder / name}: {include['file']} is no file in {folder}; correct the path"
                )
                missing.append(f"training.source_dir: {problem}")
                continue
            pending.append(PurePosixPath(found.relative_to(folder.resolve()).as_posix()))
    return dict(sorted(files.items())), missing


def _lines(text: str) -> Iterator[str]:
    """A requirements file's lines, continued ones joined, comments and blank ones left out."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if stripped := re.sub(r"(^|\s)#.*$", "", line).strip():
            yield stripped


def _only_in_the_job(line: str) -> str | None:
    """Why a build could not install what a line asks for, or None."""
    if variable := _VARIABLE.search(line):
        return (
            f"{variable.group()} is a variable of the job's environment,"
            " which a build does not know"
        )
    option = _OPTION_WITH_PLACE.match(line)
    first = (line[option.end() :] if option else line).split()[0]
    is_path = (
        first.startswith((".", "/"))
        or "/" in first
        or first.endswith(_ARCHIVES)
        or option is not None
    )
    file_url = _FILE_URL.search(line)
    if file_url or (is_path and "://" not in first and not _INCLUDE.match(line)):
        found = file_url.group() if file_url else first
        return f"{found} is a place in the code, which comes with the job"
    return None


@task(name="find-repository", **TASK_OPTIONS)
def find_why_no_push(platform: PlatformConfig, repository: str) -> str | None:
    """ECR: why a layer can't be pushed to the repository, None where it can."""
    return why_no_push(aws_client("ecr", platform), repository)
