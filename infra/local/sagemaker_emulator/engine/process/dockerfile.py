"""Parses the Dockerfile instructions that can be built on a machine without containers.

These are FROM (images built here are extended, all others are replaced by this machine's Python),
ARG, ENV, LABEL, WORKDIR, COPY and ADD of local files, RUN with only `pip install` of requirements
files and packages (optionally with --no-deps, or with `-c` and a file written by `pip list`),
ENTRYPOINT and CMD with `train`, and EXPOSE (which has no effect). Everything else is refused with
its line number instead of being ignored silently.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sagemaker_emulator.interfaces import ImageBuildError

# pip options that do not affect the content of a virtual environment.
_PIP_FLAGS = frozenset(
    {"--no-cache-dir", "--upgrade", "-U", "--quiet", "-q", "--disable-pip-version-check"}
)
_PIP_COMMANDS = (
    ["pip", "install"],
    ["pip3", "install"],
    ["python", "-m", "pip"],
    ["python3", "-m", "pip"],
)
# Writes the versions of some of the image's packages to a file for a later `pip install -c`.
_PINS = re.compile(
    r"(?:python3? -m )?pip3? list --format=freeze \| sed -nE '/(?P<pattern>[^'/]+)/p' >"
    r" (?P<file>/[^\s;&|]+)"
)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")


@dataclass(frozen=True)
class Copy:
    """A COPY from the build context to an absolute path, which ends in "/" if it is a folder."""

    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class Install:
    """A `pip install` of packages and requirements files, with their absolute paths in the image.

    `pins` is a regular expression. Installed packages whose `name==version` matches it keep their
    versions.
    """

    requirement_files: tuple[str, ...]
    packages: tuple[str, ...]
    with_dependencies: bool = True
    pins: str | None = None


@dataclass
class Recipe:
    """Everything that a build needs from a Dockerfile."""

    base: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    installs: list[Install] = field(default_factory=list)
    folder: str = "/"  # WORKDIR
    arguments: dict[str, str] = field(default_factory=dict)


def parse(
    text: str,
    build_args: Mapping[str, str],
    inherit: Callable[[str], Recipe | None] = lambda _base: None,
) -> Recipe:
    """Parse a Dockerfile.

    Args:
        text: The Dockerfile.
        build_args: Values for the Dockerfile's ARGs.
        inherit: Returns the environment, labels and folder of the image with this name, or None if
         the image is not in the store.

    Raises:
        ImageBuildError: If an instruction is not supported.
    """
    return _Reader(build_args, inherit).read(text)


class _Reader:
    def __init__(
        self, build_args: Mapping[str, str], inherit: Callable[[str], Recipe | None]
    ) -> None:
        self._build_args = build_args
        self._inherit = inherit
        self._recipe = Recipe()
        self._arguments = self._recipe.arguments
        self._pins: dict[str, str] = {}  # file -> pattern
        self._handlers: dict[str, Callable[[str], None]] = {
            "FROM": self._set_base,
            "ARG": self._declare_arguments,
            "ENV": lambda rest: self._recipe.environment.update(self._pairs(rest)),
            "LABEL": lambda rest: self._recipe.labels.update(self._pairs(rest)),
            "WORKDIR": self._change_folder,
            "COPY": self._add_copy,
            "ADD": self._add_copy,
            "RUN": self._add_installs,
            "ENTRYPOINT": self._check_command,
            "CMD": self._check_command,
            "EXPOSE": lambda _rest: None,
        }

    def read(self, text: str) -> Recipe:
        for number, instruction, rest in _instructions(text):
            try:
                if instruction not in self._handlers:
                    raise ValueError(
                        "needs a container engine; supported without one:"
                        f" {', '.join(self._handlers)}"
                    )
                self._handlers[instruction](rest)
            except ValueError as error:
                raise ImageBuildError(
                    f"READ Dockerfile: line {number}: {instruction} {rest}: {error}"
                ) from error
        if self._recipe.base is None:
            raise ImageBuildError("READ Dockerfile: the file has no FROM line")
        return self._recipe

    def _set_base(self, rest: str) -> None:
        if self._recipe.base is not None:
            raise ValueError("multiple stages need a container engine; use one FROM")
        words = [word for word in rest.split() if not word.startswith("--")]
        if not words:
            raise ValueError("expected an image")
        self._recipe.base = base = self._expand(words[0])
        if inherited := self._inherit(base):
            self._recipe.environment.update(inherited.environment)
            self._recipe.labels.update(inherited.labels)
            self._recipe.folder = inherited.folder

    def _declare_arguments(self, rest: str) -> None:
        for item in shlex.split(rest):
            name, has_default, default = item.partition("=")
            if name in self._build_args:
                self._arguments[name] = self._build_args[name]
            elif has_default:
                self._arguments[name] = self._expand(default)

    def _change_folder(self, rest: str) -> None:
        self._recipe.folder = self._absolute(self._expand(rest)).rstrip("/") or "/"

    def _add_copy(self, rest: str) -> None:
        words = _words(rest)
        if any(word.startswith("--from") for word in words):
            raise ValueError("copying from a different image needs a container engine")
        *sources, target = (self._expand(word) for word in words if not word.startswith("--"))
        if not sources:
            raise ValueError("a source and a target are needed")
        for source in sources:
            if "://" in source or ".." in source.split("/"):
                raise ValueError(f"{source} is not in the build context")
        self._recipe.copies.append(Copy(tuple(sources), self._absolute(target)))

    def _add_installs(self, rest: str) -> None:
        for command in re.split(r"&&|;", rest):
            if pins := _PINS.fullmatch(command.strip()):
                self._pins[pins["file"]] = pins["pattern"]
                continue
            words = [self._expand(word) for word in shlex.split(command)]
            prefix = next(
                (prefix for prefix in _PIP_COMMANDS if words[: len(prefix)] == prefix), None
            )
            if prefix is None or "install" not in words[1:4]:
                raise ValueError("only `pip install` can be run without a container engine")
            self._recipe.installs.append(self._install(words[words.index("install") + 1 :]))

    def _install(self, words: list[str]) -> Install:
        files, packages, with_dependencies = [], [], True
        pins: str | None = None
        remaining = iter(words)
        for word in remaining:
            if word in ("-r", "--requirement"):
                files.append(self._absolute(next(remaining, "")))
            elif word == "-c" and (file := next(remaining, "")) in self._pins:
                pins = self._pins[file]
            elif word == "--no-deps":
                with_dependencies = False
            elif word.startswith("-") and word not in _PIP_FLAGS:
                raise ValueError(
                    f"pip option {word} is not supported without a container engine; set it in the "
                    "builder's environment (PIP_EXTRA_INDEX_URL …) or in the requirements file"
                )
            elif not word.startswith("-"):
                packages.append(word)
        return Install(tuple(files), tuple(packages), with_dependencies, pins)

    def _check_command(self, rest: str) -> None:
        if _words(rest) != ["train"]:
            raise ValueError('SageMaker runs `train`; write ENTRYPOINT ["train"], or omit it')

    def _pairs(self, rest: str) -> dict[str, str]:
        words = shlex.split(rest)
        if len(words) > 1 and "=" not in words[0]:  # old form: ENV NAME rest
            return {words[0]: self._expand(rest.split(maxsplit=1)[1])}
        if not words:
            raise ValueError("expected NAME=value")
        pairs = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise ValueError(f"expected NAME=value, got {word}")
            pairs[name] = self._expand(value)
        return pairs

    def _expand(self, text: str) -> str:
        values = self._arguments | self._recipe.environment
        return _VARIABLE.sub(
            lambda match: values.get(match["braced"] or match["plain"]) or match["default"] or "",
            text,
        )

    def _absolute(self, path: str) -> str:
        joined = posixpath.join(self._recipe.folder, path)
        is_folder = path.endswith("/") or posixpath.basename(path) in (".", "..")
        return posixpath.normpath(joined).rstrip("/") + ("/" if is_folder else "")


def _words(rest: str) -> list[str]:
    """Return the arguments of an instruction, which are a JSON list or words as in a shell."""
    return [str(word) for word in json.loads(rest)] if rest.startswith("[") else shlex.split(rest)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, name and arguments of each instruction, without comments."""
    joined = ""
    first_number = 0
    # Docker skips a byte order mark
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if not joined:
            first_number = number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        instruction, *rest = (joined + line).split(maxsplit=1)
        joined = ""
        yield first_number, instruction.upper(), "".join(rest)
    if joined:
        raise ImageBuildError(
            f"READ Dockerfile: line {first_number}: nothing follows the backslash at the end"
        )
