"""The content of an image: files of the build context, laid out for nodes, and their digests."""

from __future__ import annotations

import codecs
import hashlib
import json
import platform
import re
import shlex
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from sagemaker_emulator.engine.process.dockerfile import Copy, Install, Recipe
from sagemaker_emulator.interfaces import ImageBuildError

_CODE = PurePosixPath("/opt/ml/code")
_INSTALLER_ARGUMENTS = ("PIP_", "UV_")


@dataclass(frozen=True)
class PlacedInstall:
    """A `pip install`, with the paths of its requirements files in the build context."""

    requirement_files: tuple[Path, ...]
    packages: tuple[str, ...]
    with_dependencies: bool
    pins: str | None


@dataclass(frozen=True)
class Content:
    """An image before it is built.

    `files` maps paths in the stored image (code/…, files/…) to files in the build context. `base`
    is the folder of the image that this image extends, or None if that image is not in the store.
    """

    base: Path | None
    files: Mapping[str, Path]
    installs: tuple[PlacedInstall, ...]
    installer_arguments: Mapping[str, str]
    venv_digest: str
    image_digest: str


def read_content(
    context: Path, recipe: Recipe, build_args: Mapping[str, str], base: Path | None = None
) -> Content:
    """Resolve a recipe against its build context.

    Raises:
        ImageBuildError: If the recipe and the build context do not match.
    """
    placed = _place(context, recipe.copies)
    installs = tuple(_placed_install(install, placed) for install in recipe.installs)
    requirement_files = [path for install in installs for path in install.requirement_files]
    named = _named_folders(recipe.environment)
    files: dict[str, Path] = {}
    for target, source in placed.items():
        path = PurePosixPath(target)
        if path.is_relative_to(_CODE):
            files[f"code/{path.relative_to(_CODE)}"] = source
        elif any(path.is_relative_to(folder) for folder in named):
            files[f"files{path}"] = source
        elif not _is_referred_to(source, requirement_files):
            raise ImageBuildError(
                f"COPY: {target}: without containers, nodes only see {_CODE} and folders named in"
                " an ENV, and `pip install` only sees its requirements files"
            )
    # A RUN sees the Dockerfile's ARGs and ENVs, of which ENVs take precedence.
    seen = {**build_args, **recipe.arguments, **recipe.environment}
    installer_arguments = {n: v for n, v in seen.items() if n.startswith(_INSTALLER_ARGUMENTS)}
    venv_digest = _venv_digest(installs, installer_arguments, base)
    return Content(
        base=base,
        files=files,
        installs=installs,
        installer_arguments=installer_arguments,
        venv_digest=venv_digest,
        image_digest=_image_digest(files, recipe, venv_digest, base),
    )


def _place(context: Path, copies: Iterable[Copy]) -> dict[str, Path]:
    """Map absolute paths in the image to files in the build context.

    As in Docker, COPY copies the content of a source folder, not the folder itself.
    """
    included = _included_files(context)
    placed: dict[str, Path] = {}
    for copy in copies:
        into_folder = (
            copy.target.endswith("/")
            or len(copy.sources) > 1
            or PurePosixPath(copy.target) == _CODE
        )
        for pattern in copy.sources:
            matches = _matches(pattern, included)
            if not matches:
                raise ImageBuildError(
                    f"COPY: {pattern} is not in the build context (or .dockerignore excludes it)"
                )
            for relative, inside in matches.items():
                is_named = not inside and (into_folder or len(matches) > 1)
                inner = (relative.name,) if is_named else inside
                placed[str(PurePosixPath(copy.target, *inner))] = context / relative
    return placed


def _matches(
    pattern: str, included: Iterable[PurePosixPath]
) -> dict[PurePosixPath, tuple[str, ...]]:
    """Map the files that match a COPY source, or are in a folder that does, to their paths in it.

    As in Docker, a wildcard matches within one component of a path. The path of a file that itself
    matches is empty.
    """
    parts = PurePosixPath(pattern.strip("/")).parts
    return {
        path: path.parts[len(parts) :]
        for path in included
        if len(path.parts) >= len(parts) and all(map(fnmatchcase, path.parts, parts))
    }


def _included_files(context: Path) -> list[PurePosixPath]:
    """Return the sorted files of the build context that its ignore file does not exclude.

    Like BuildKit, this uses Dockerfile.dockerignore instead of .dockerignore if it exists.
    """
    from docker.utils.build import exclude_paths

    own = context / "Dockerfile.dockerignore"
    ignore_file = own if own.is_file() else context / ".dockerignore"
    # Docker skips a byte order mark
    text = ignore_file.read_text("utf-8-sig", "replace") if ignore_file.is_file() else ""
    lines = text.splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    # Python caches would give every developer a different digest, and no program needs them.
    patterns += ["**/__pycache__", f"!{own.name}"]
    names = exclude_paths(str(context), patterns)
    return sorted(PurePosixPath(name) for name in names if (context / name).is_file())


def _named_folders(environment: Mapping[str, str]) -> list[PurePosixPath]:
    """Return the folders that ENVs other than PATH name, alone or in a list.

    In the environment of a node, these paths are replaced with the paths of the node's copies.
    """
    values = [value for name, value in environment.items() if name != "PATH"]
    paths = [
        PurePosixPath(path) for value in values for path in value.split(":") if path.startswith("/")
    ]
    return [
        path
        for path in paths
        if path != PurePosixPath("/") and not path.is_relative_to(_CODE.parent)
    ]


def _placed_install(install: Install, placed: Mapping[str, Path]) -> PlacedInstall:
    files = tuple(_source_of(path, placed) for path in install.requirement_files)
    return PlacedInstall(files, install.packages, install.with_dependencies, install.pins)


def _source_of(image_path: str, placed: Mapping[str, Path]) -> Path:
    if image_path not in placed:
        raise ImageBuildError(
            f"READ Dockerfile: pip install -r {image_path}: no earlier COPY creates this file"
        )
    return placed[image_path]


def _is_referred_to(source: Path, requirement_files: Iterable[Path]) -> bool:
    return any(
        source == path or path in source.parents for _, path in _referred_paths(requirement_files)
    ) or any(source == path for path in requirement_files)


def requirement_lines(path: Path) -> list[str]:
    """Return the lines of a requirements file, with continued lines joined and without comments.

    As in pip, UTF-16 is decoded, and a line that is only a comment is not continued.
    """
    data = path.read_bytes()
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = data.decode("utf-16" if is_wide else "utf-8-sig", "replace")
    joined = re.sub(r"\\\r?\n", "", re.sub(r"(?m)^[ \t]*#.*$", "", text))
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _referred_paths(requirement_files: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Return the -r, -c and local package paths in requirements files, with the file of each."""
    found: list[tuple[Path, Path]] = []
    pending = list(requirement_files)
    while pending:
        file = pending.pop()
        for line in requirement_lines(file):
            match = re.match(
                r"(?:-r|-c|--requirement|--constraint)[\s=]*(?P<file>\S.*)|(?P<package>\.{1,2}/\S+)",
                line,
            )
            if not match:
                continue
            name = match["package"] or _first_word(match["file"])
            path = (file.parent / name).resolve()
            if not path.exists():
                raise ImageBuildError(
                    f"READ {file.name}: {line}: the path is not in the build context"
                )
            found.append((file, path))
            if match["file"] and path not in [seen for seen, _ in found]:
                pending.append(path)
    return found


def _first_word(text: str) -> str:
    try:
        return shlex.split(text)[0]
    except ValueError:  # a quotation mark is missing
        return text


def python_name() -> str:
    """Return a name for this Python and platform, since compiled packages are specific to both."""
    return (
        f"{platform.python_implementation()}-{platform.python_version()}-{sysconfig.get_platform()}"
    )


def venv_of(image: Path) -> Path:
    """Return the real path of a stored image's virtual environment."""
    return (image / "venv").resolve()


def _venv_digest(
    installs: Sequence[PlacedInstall], installer_arguments: Mapping[str, str], base: Path | None
) -> str:
    """Return the digest of the virtual environment: the base image's if nothing is installed."""
    if base is not None and not installs:
        return venv_of(base).name
    return _digest(
        {
            **({} if base is None else {"base": venv_of(base).name}),
            "python": python_name(),
            "installs": [
                [
                    [_tree_digest(path) for path in install.requirement_files],
                    [_tree_digest(path) for _, path in _referred_paths(install.requirement_files)],
                    [*install.packages],
                    install.with_dependencies,
                    *([] if install.pins is None else [install.pins]),
                ]
                for install in installs
            ],
            "installer_arguments": dict(installer_arguments),
        }
    )


def _tree_digest(path: Path) -> list[list[str]]:
    paths = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
    return [
        [str(item.relative_to(path.parent)), file_digest(item)]
        for item in paths
        if "__pycache__" not in item.parts
    ]


def _image_digest(
    files: Mapping[str, Path], recipe: Recipe, venv_digest: str, base: Path | None
) -> str:
    return _digest(
        {
            **({} if base is None else {"base": base.name}),
            "files": {
                name: [is_executable(path), file_digest(path)] for name, path in files.items()
            },
            "environment": recipe.environment,
            "labels": recipe.labels,
            "folder": recipe.folder,
            "venv": venv_digest,
        }
    )


def is_executable(path: Path) -> bool:
    """Return True if the owner may execute the file. All checkouts share only this mode bit."""
    return bool(path.stat().st_mode & 0o100)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
