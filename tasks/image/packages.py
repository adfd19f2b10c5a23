"""Install the code's requirements.txt in an extra layer of the image.

Otherwise, SageMaker's toolkit installs it on every node whenever a job starts, and that time is
billed. The layer is built once for each combination of requirements.txt and base image, and the
file is not sent with the job (tasks/jobs/source.py).
"""

from __future__ import annotations

import codecs
import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nodesweep.configs.models import ImageConfig, TrainingConfig
from nodesweep.launch.sagemaker.preflight.storage import push_problem
from nodesweep.scaling.rules.rule import Requirements
from nodesweep.tasks.image.find import Images

REQUIREMENTS_FILE = "requirements.txt"
"""The only requirements file that the toolkit installs; it must be at the top of the code."""
_PLACE = "/opt/nodesweep/packages"
_KEPT = "^torch(vision|audio)?=="
_WANTS_TORCH = re.compile(
    r"(?P<package>[\w.-]+) (?P<version>[\w.+!-]+) depends on torch(?:==|<|>|~=| )*(?P<torch>[\d.]+)"
)
_KEPT_TORCH = re.compile(r"\(constraint\) torch(?:<=[\w.+]+,)?==(?P<torch>[\w.+]+)")
"""Patterns of pip's messages about a conflict."""
_INCLUDE = re.compile(r"(?:-[rc][\s=]*|--(?:requirement|constraint)[\s=]+)(?P<rest>\S.*)")
_CODING = re.compile(rb"(?:[^\n]*\n)?#[^\n]*coding[:=]\s*(?P<name>[-\w.]+)")
_OPTION_WITH_PLACE = re.compile(
    r"(?:-[efi][\s=]*|--(?:editable|find-links|index-url|extra-index-url)[\s=]+)(?=\S)"
)
_ARCHIVES = (".whl", ".zip", ".tar.gz")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")  # replaced by pip from its environment
_FILE_URL = re.compile(r"\bfile:\S+")
_INSTALLER_SETTING = "PIP_"


def read_requirements(
    training: TrainingConfig, fixed_image: str | None = None
) -> Requirements | None:
    """Return the code's requirements; None if it has none, or no image that can get a layer.

    A layer is built before the job starts, so it can't include a package from the code, or depend
    on the job's environment or on pip's settings in training.environment.
    """
    if training.source_dir is None or fixed_image is not None:
        return None
    folder = Path(training.source_dir)
    if not (folder / REQUIREMENTS_FILE).is_file():
        return None
    files, missing = _included_files(folder)
    lines = [(name, line) for name, data in files.items() for line in _lines(data)]
    if not lines:
        return None
    settings = sorted(name for name in training.environment if name.startswith(_INSTALLER_SETTING))
    reasons = [f"training.environment sets {name}, which a build cannot see" for name in settings]
    reasons += [f"{name}: {why}" for name, line in lines if (why := _only_in_the_job(line))]
    return Requirements(
        folder / REQUIREMENTS_FILE, files, reasons[0] if reasons else None, tuple(missing)
    )


def unread_requirements(training: TrainingConfig, context: Path, highest: Path) -> Path | None:
    """Return a requirements.txt that a user may expect to be installed, if the code has none.

    It is next to the entry point, or in the nearest folder above training.source_dir up to
    `highest`. One in image.context, `context`, belongs to the image.
    """
    if training.source_dir is None:
        return None
    folder = Path(training.source_dir).absolute()
    if (folder / REQUIREMENTS_FILE).exists():
        return None
    program_folder = (folder / training.entry_point).parent
    above = [each for each in folder.parents if highest in (each, *each.parents)]
    places = (each / REQUIREMENTS_FILE for each in (program_folder, *above))
    found = next((place for place in places if place.is_file()), None)
    is_images = found is not None and found.is_relative_to(context.absolute())
    return None if is_images else found


def write_layer(
    requirements: Requirements, base: str, image: ImageConfig, folder: Path
) -> ImageConfig:
    """Write the build context of a layer on `base` into `folder`; return the image section for it.

    The section includes pip's settings from image.build_args.
    """
    settings = {
        name: value
        for name, value in image.build_args.items()
        if name.startswith(_INSTALLER_SETTING)
    }
    for name, data in requirements.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "Dockerfile").write_text(_dockerfile(requirements.files, settings))
    layer = {
        "context": str(folder),
        "base_image": base,
        "framework": None,
        "uri": None,
        "build_args": settings,
    }
    return image.model_copy(update=layer)


def _dockerfile(files: Iterable[str], settings: Mapping[str, str]) -> str:
    """Return the layer's Dockerfile.

    The base is passed as BASE_IMAGE, from which infra/image/buildspec.yml derives the registry.
    The image's torch is kept, because it is built for the nodes' accelerators and network.
    pip refuses a requirement that needs a different one, and selects the matching torchvision.
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


def build_failure_remedy(output: str) -> str:
    """Return a remedy for a failed layer according to pip's output, or "" if there is none.

    The image's torch is kept, so a package that needs a different version can't be installed.
    """
    found = _WANTS_TORCH.search(output)
    kept = _KEPT_TORCH.search(output)
    if found is None or kept is None:
        return ""
    package = found["package"]
    return (
        f"{package} {found['version']} requires torch {found['torch']}, but the image keeps torch"
        f" {kept['torch']}. Unpin {package} to get the matching release, or pin that release. "
    )


def _included_files(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return requirements.txt and the files it includes, and problems with missing includes.

    -r and -c include files, by paths relative to the including file.
    """
    files: dict[str, bytes] = {}
    missing = []
    pending = [REQUIREMENTS_FILE]
    while pending:
        name = pending.pop()
        if name in files:
            continue
        files[name] = (folder / name).read_bytes()
        for include in filter(None, map(_included_file, _lines(files[name]))):
            # A link keeps its name, by which pip looks for the file.
            included = posixpath.normpath(posixpath.join(posixpath.dirname(name), include))
            found = (folder / included).resolve()
            if (
                included.startswith(("/", "../"))
                or not found.is_file()
                or not found.is_relative_to(folder.resolve())
            ):
                problem = f"{folder / name}: {include} is not a file in {folder}; correct the path"
                missing.append(f"training.source_dir: {problem}")
                continue
            pending.append(included)
    return dict(sorted(files.items())), missing


def _included_file(line: str) -> str | None:
    """Return the path of the file that a line includes, or None if it includes no local file."""
    include = _INCLUDE.match(line)
    if include is None or "://" in include["rest"]:
        return None
    try:
        return shlex.split(include["rest"])[0]
    except ValueError:  # a quotation mark is missing
        return include["rest"]


def decoded(requirements: bytes) -> str:
    """Decode a requirements file as pip does: by byte order mark, or by a comment like Python's.

    Invalid characters are replaced.
    """
    encoding = "utf-8-sig"
    if requirements.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"  # `pip freeze > requirements.txt` in Windows PowerShell
    elif coding := _CODING.match(requirements):
        encoding = coding["name"].decode()
    try:
        return requirements.decode(encoding, "replace")
    except (LookupError, UnicodeError):  # no encoding of text
        return requirements.decode(errors="replace")


def _lines(requirements: bytes) -> Iterator[str]:
    """Yield the lines of a requirements file, without comments, and with continued lines joined.

    As in pip, a line that is only a comment is not continued.
    """
    text = re.sub(r"(?m)^[ \t]*#.*$", "", decoded(requirements))
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        if stripped := re.sub(r"(^|\s)#.*$", "", line).strip():
            yield stripped


def _only_in_the_job(line: str) -> str | None:
    """Return the reason why a build can't install a requirement, or None if it can."""
    if variable := _VARIABLE.search(line):
        return (
            f"{variable.group()} is a variable of the job's environment, which a build cannot see"
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
        return f"{found} is a path in the code, which only the job can see"
    return None


def find_push_problem(images: Images) -> str | None:
    """Return the reason why a layer can't be pushed to the ECR repository, or None if it can."""
    return push_problem(images.ecr, images.section.repository)
