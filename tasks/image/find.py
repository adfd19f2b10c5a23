"""The training image: tagged by its build inputs, looked up in ECR and used by digest."""

from __future__ import annotations

import hashlib
import io
import logging
import posixpath
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pathspec import PathSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from nodesweep.configs.models import ImageConfig
from nodesweep.errors import ImageBuildFailed, PreflightRefused, error_code
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.preflight.storage import no_repository
from nodesweep.scaling import names
from nodesweep.scaling.rules.dockerfile import declares_argument, dockerfile_bases
from nodesweep.tasks.folder import Entry, holds_secret, is_one_of, walk

logger = logging.getLogger("nodesweep.image")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal contexts give equal bytes
_EXECUTABLE = (b"#!", b"\x7fELF")
_REVISION_SECONDS = 10
_REVISION_ARGUMENT = "SOURCE_REVISION"
_NEVER_SENT = ("__pycache__", ".nodesweep")
"""Folders left out of every context; .nodesweep has logs, virtual environments and keys."""


@dataclass(frozen=True)
class Images:
    """The images of a config's image section on a platform."""

    backend: Backend
    section: ImageConfig

    @property
    def ecr(self) -> Any:
        """The platform's ECR client."""
        return self.backend.client("ecr")


@dataclass(frozen=True)
class BuildContext:
    """A build context's files, except ignored ones, and a tag computed from all build inputs.

    `files` maps paths to SHA-256 digests. `bases` are the base images, by digest if known; if the
    Dockerfile takes a base from an argument, `build_args` passes that digest.
    """

    root: Path
    files: Mapping[str, str]
    tag: str
    build_args: Mapping[str, str]
    bases: tuple[str, ...]


@dataclass(frozen=True)
class Image:
    """An image pinned by digest; `built` is True if this run built it."""

    uri: str
    tag: str | None
    built: bool


def read_context(
    config: ImageConfig,
    pinned: Mapping[str, str] | None = None,
    left_out: Sequence[Path] = (),
) -> BuildContext:
    """Read and hash the build inputs: files, build arguments and base images.

    File modes, times and the folder's location do not affect the tag.

    Args:
        config: the image section.
        pinned: base images as written, with their digests (tasks/image/bases.py); other
            base images are identified by name.
        left_out: files and folders that are no part of the context (BenchmarkConfig.own_folders).

    Raises:
        PreflightRefused: there is no Dockerfile, or a file cannot be sent.
    """
    root = config.build_context
    if not (root / "Dockerfile").is_file():
        raise PreflightRefused(
            f"image.context: {root} has no Dockerfile; add one, or set image.uri"
        )
    paths = list_context(root, left_out).files
    files = {name: _digest((root / name).read_bytes()) for name in paths}
    arguments = config.all_build_args
    bases = dockerfile_bases((root / "Dockerfile").read_text(errors="replace"), arguments)
    pins = pinned or {}
    used = {base.reference: pins.get(base.reference, base.reference) for base in bases}
    identity = {"files": files, "build_args": arguments, "base_images": sorted(set(used.values()))}
    by_argument = {
        base.argument: used[base.reference]
        for base in bases
        if base.argument and base.reference in pins
    }
    tag = names.image_tag(names.canonical_digest(identity))
    return BuildContext(
        root, files, tag, {**arguments, **by_argument}, tuple(sorted(set(used.values())))
    )


def arguments_to_send(context: BuildContext) -> dict[str, str]:
    """Return the build arguments, including SOURCE_REVISION if the Dockerfile declares it.

    The revision is only a label, not part of the image's identity.
    """
    if _REVISION_ARGUMENT in context.build_args or not declares_argument(
        (context.root / "Dockerfile").read_text(errors="replace"), _REVISION_ARGUMENT
    ):
        return dict(context.build_args)
    revision = source_revision(context.root)
    return {**context.build_args, **({_REVISION_ARGUMENT: revision} if revision else {})}


def source_revision(folder: Path) -> str | None:
    """Return the Git commit of the folder, with "-dirty" if modified, or None if it is unknown.

    It is unknown if Git does not track the Dockerfile, because an installed package can be inside
    an unrelated work tree.
    """
    if _git(folder, "ls-files", "--", "Dockerfile") is None:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's output, or None if it is empty or git fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_REVISION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


@dataclass(frozen=True)
class ContextFiles:
    """Paths of a build context's files, sorted, and of files left out as possible secrets."""

    files: tuple[str, ...]
    secrets: tuple[str, ...]


def list_context(root: Path, left_out: Sequence[Path] = ()) -> ContextFiles:
    """Return the context's files, except ignored ones and those in `left_out`.

    The Dockerfile and its ignore file are always included. As in Docker, patterns are relative to
    the context's root, the last match decides, and Dockerfile.dockerignore replaces .dockerignore.

    Raises:
        PreflightRefused: a link is broken or points outside the context.
    """
    own = root / "Dockerfile.dockerignore"
    ignore_file = own if own.is_file() else root / ".dockerignore"
    # Docker ignores a byte order mark.
    text = ignore_file.read_text("utf-8-sig", "replace") if ignore_file.is_file() else ""
    lines = text.splitlines()
    always = ("Dockerfile", own.name)
    ignored = PathSpec.from_lines(GitIgnoreSpecPattern, map(_anchored, lines))
    # A pattern can re-include a file below an excluded folder.
    are_folders_final = not any(line.strip().startswith("!") for line in lines)
    secrets: list[str] = []
    is_other = is_one_of(left_out, root)

    def is_left_out(entry: Entry) -> bool:
        if entry.own_name in _NEVER_SENT or is_other(entry):
            return True
        if entry.name not in always and ignored.match_file(entry.name):
            return are_folders_final or not entry.is_folder
        if entry.name not in always and holds_secret(entry):
            secrets.append(entry.name)
            return True
        return False

    walked = walk(root, is_left_out)
    if walked.refused:
        raise PreflightRefused(
            *(f"image.context: {root / it.name} {it.why}" for it in walked.refused)
        )
    files = (path.relative_to(root).as_posix() for path in walked.files)
    return ContextFiles(tuple(files), tuple(sorted(secrets)))


def _anchored(line: str) -> str:
    """Convert a line of .dockerignore to .gitignore's syntax."""
    pattern = line.strip()
    if not pattern or pattern.startswith("#"):
        return ""
    sign, body = ("!", pattern[1:].strip()) if pattern.startswith("!") else ("", pattern)
    path = posixpath.normpath(f"/{body.strip('/')}")
    return "" if path == "/" else f"{sign}{path}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def context_file(context: BuildContext, name: str) -> tuple[bytes, int]:
    """Return (content, mode) of a file for the build.

    Scripts and binaries are executable in the build, regardless of their mode here.

    Raises:
        ImageBuildFailed: the file has changed since the tag was computed.
    """
    path = context.root / name
    content = path.read_bytes() if path.is_file() else b""
    if _digest(content) != context.files[name]:
        raise ImageBuildFailed(
            f"image.context: {path} changed since the run began; run again to build the new version"
        )
    return content, 0o755 if content.startswith(_EXECUTABLE) else 0o644


def zip_context(context: BuildContext) -> bytes:
    """Return the context as a zip with fixed order, times and modes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in context.files:
            content, mode = context_file(context, name)
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.external_attr = (0o100000 | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def find(ecr: Any, repository: str, tag: str) -> str | None:
    """Return the image's digest, or None if the repository or the tag does not exist.

    A tagged image is complete, because ECR refuses a manifest whose layers are missing.
    """
    try:
        details = ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])[
            "imageDetails"
        ]
    except ecr.exceptions.ClientError as error:
        if error_code(error) in ("ImageNotFoundException", "RepositoryNotFoundException"):
            return None
        raise
    return str(details[0]["imageDigest"]) if details else None


def find_repository(ecr: Any, config: ImageConfig, create_missing: bool, tag: str) -> str:
    """Return the URI of the ECR repository to push to; create it if allowed.

    Raises:
        PreflightRefused: there is no repository, or `tag` could be moved to a different image.
    """
    try:
        found = ecr.describe_repositories(repositoryNames=[config.repository])["repositories"][0]
    except ecr.exceptions.RepositoryNotFoundException:
        if not create_missing:
            raise PreflightRefused(no_repository(config.repository)) from None
        found = _create_repository(ecr, config.repository)
    if not _is_immutable(found, tag):
        raise PreflightRefused(
            f"image.repository: tags of {config.repository!r} are mutable, so a tag would not"
            " identify an image's contents; run aws ecr put-image-tag-mutability --repository-name"
            f" {config.repository} --image-tag-mutability IMMUTABLE"
        )
    return str(found["repositoryUri"])


def _create_repository(ecr: Any, name: str) -> Any:
    """Create the repository and return its description.

    It may already exist, because botocore repeats a call whose response was lost.
    """
    try:
        return ecr.create_repository(repositoryName=name, imageTagMutability="IMMUTABLE")[
            "repository"
        ]
    except ecr.exceptions.RepositoryAlreadyExistsException:
        return ecr.describe_repositories(repositoryNames=[name])["repositories"][0]


def _is_immutable(repository: Mapping[str, Any], tag: str) -> bool:
    filters = repository.get("imageTagMutabilityExclusionFilters") or ()
    is_exception = any(fnmatchcase(tag, item["filter"]) for item in filters)
    return bool(repository["imageTagMutability"].startswith("IMMUTABLE") != is_exception)


def pushed_image(
    ecr: Any,
    repository_name: str,
    repository: str,
    tag: str,
    build_name: str,
    build: Callable[[], str | None],
) -> Image:
    """Run `build`, and return the image that ECR then has.

    If the build fails but ECR has the tag, only a warning is logged.

    Args:
        ecr: the ECR client.
        repository_name: the repository's name.
        repository: the repository's URI.
        tag: the image's tag.
        build_name: the build's name in messages.
        build: builds and pushes the image; returns its digest, or None if unknown.

    Raises:
        ImageBuildFailed: ECR has no such tag, or has a different digest for it.
    """
    pushed: str | None = None
    failure: ImageBuildFailed | None = None
    try:
        pushed = build()
    except ImageBuildFailed as error:
        failure = error
    digest = find(ecr, repository_name, tag)
    if digest is None:
        raise failure or ImageBuildFailed(
            f"{build_name} succeeded, but ECR has no {repository_name}:{tag}"
        )
    if pushed not in (None, digest):
        raise ImageBuildFailed(
            f"{build_name} pushed {pushed}, but {repository_name}:{tag} is {digest} in ECR"
        )
    if failure is not None:
        logger.warning(
            "using %s:%s, which is in ECR although the build failed: %s",
            repository_name, tag, failure,
        )  # fmt: skip
    return Image(names.image_uri(repository, digest), tag, built=failure is None)


def find_image(images: Images, context: BuildContext) -> Image | None:
    """Find the image of this build context in ECR, pinned by digest."""
    ecr, repository = images.ecr, images.section.repository
    digest = find(ecr, repository, context.tag)
    if digest is None:
        return None
    found = ecr.describe_repositories(repositoryNames=[repository])["repositories"][0]
    return Image(names.image_uri(found["repositoryUri"], digest), context.tag, built=False)
