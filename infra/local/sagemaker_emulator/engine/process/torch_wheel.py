"""Installs PyTorch for nodes without a GPU, preferably from a CPU wheel.

The default wheel contains CUDA, which no node can use here. It is only installed, with a note, if
no CPU wheel is found. Wheels are downloaded with pip because its configuration (PIP_FIND_LINKS,
PIP_EXTRA_INDEX_URL …), which uv does not read, names their sources, to which PyTorch's CPU index is
added.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sagemaker_emulator.engine.process.build_run import BuildRun
from sagemaker_emulator.engine.process.download_lines import DownloadSummary, megabytes
from sagemaker_emulator.engine.process.image_content import (
    PlacedInstall,
    file_digest,
    requirement_lines,
)
from sagemaker_emulator.interfaces import ImageBuildError

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""The PyTorch project's index of wheels without CUDA."""
PIP_OPTIONS = ("--no-input", "--progress-bar", "off", "--disable-pip-version-check")
IMPATIENT = ("--timeout", "15", "--retries", "1")
"""pip options for the CPU wheel that make pip give up on a silent index after 30 s."""
_SIZING_SECONDS = 60.0
_FAMILY = re.compile(r"(torch|torchvision|torchaudio)\b(?!-)", re.IGNORECASE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_EXACT = re.compile(r"(?P<name>[\w.-]+)\s*==\s*(?P<version>[\w.]+)(?P<rest>\s*;.*)?")
_OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")


@dataclass(frozen=True)
class Target:
    """The environment in which a build runs commands. `uv` is empty if uv is not installed."""

    venv: Path
    environment: Mapping[str, str]
    folder: Path
    run: BuildRun
    lock_fd: int
    uv: Sequence[str]

    def command(self, phase: str, argv: Sequence[str], run: BuildRun | None = None) -> None:
        """Run a command of the build."""
        (run or self.run).command(phase, argv, self.environment, self.folder, self.lock_fd)

    def is_installed_by_uv(self, phase: str, wanted: Sequence[str]) -> bool:
        """Install with uv and compile to bytecode, or return False if uv is missing or fails."""
        if not self.uv:
            return False
        python = str(self.venv / "bin" / "python")
        options = ["--python", python, "--compile-bytecode", "--no-progress"]
        try:
            self.command(f"{phase} with uv", [*self.uv, "pip", "install", *options, *wanted])
        except ImageBuildError:
            self.run.check(f"{phase} with uv")
            self.run.on_line(
                f"uv could not {phase.lower()} (it does not read pip's configuration); trying pip"
            )
            return False
        return True

    def pip(self, verb: str) -> list[str]:
        """Return a command of the environment's pip."""
        return [str(self.venv / "bin" / "python"), "-P", "-m", "pip", verb, *PIP_OPTIONS]


def asks_for_torch(install: PlacedInstall) -> bool:
    """Return True if the install includes torch, torchvision or torchaudio."""
    return bool(_lines_of_torch(install))


def install_torch(install: PlacedInstall, target: Target) -> None:
    """Download and install the PyTorch packages of an install, without their dependencies.

    pip selects the wheels without the hashes in the requirements, which are verified afterwards.
    With hashes, pip would prefer a wheel whose link contains a listed hash (PyPI's, with CUDA) to a
    newer wheel (+cpu) in a folder (PIP_FIND_LINKS), which it would have to read first.
    """
    lines = [line for line in _lines_of_torch(install) if not _is_installed(line, target.venv)]
    if not lines:
        return
    folder = target.venv / "torch-download"
    fetched = _fetch(target, [_HASH.sub("", line).strip() for line in lines], folder)
    listed = {digest for line in lines for digest in _HASH.findall(line)}
    wheels = sorted(folder.iterdir())
    for wheel in wheels if listed else ():
        if (digest := file_digest(wheel)) not in listed:
            raise ImageBuildError(
                f"DOWNLOAD torch: {wheel.name} has sha256:{digest}, which is not one of the hashes"
                " in the requirement; if you trust the index that the wheel comes from, add this"
                " hash to the requirement"
            )
    for wheel in wheels:
        target.run.on_line(fetched.wheel_line(wheel))
    # uv compiles the 2,300 files of torch on all cores. A temporary cache is enough here.
    by_path = ["--no-deps", *map(str, wheels)]
    if not target.is_installed_by_uv("INSTALL torch", [f"--cache-dir={folder}/uv", *by_path]):
        target.command("INSTALL torch", [*target.pip("install"), *by_path])
    shutil.rmtree(folder)


def _lines_of_torch(install: PlacedInstall) -> list[str]:
    lines = [line for path in install.requirement_files for line in requirement_lines(path)]
    return [line for line in (*lines, *install.packages) if _FAMILY.match(line)]


def _is_installed(line: str, venv: Path) -> bool:
    """Return True if a requirement is only a name and any version of it is installed."""
    folders = [str(folder) for folder in (venv / "lib").glob("python3*/site-packages")]
    return any(
        one.name.lower() == line.strip().lower()
        for one in importlib.metadata.distributions(path=folders)
    )


def _fetch(target: Target, lines: Sequence[str], folder: Path) -> DownloadSummary:
    """Download wheels without CUDA if there are any, else the default wheels."""
    download = [*target.pip("download"), "--no-deps", "--dest", str(folder)]
    extra_index = ["--extra-index-url", CPU_INDEX]
    without_cuda = [_without_cuda(line) for line in lines]
    if without_cuda == lines:  # no exact version, or the user chose a build such as +cu126
        return _download(target, "DOWNLOAD torch", [*download, *extra_index, *lines])[0]
    phase = "DOWNLOAD torch without CUDA"
    fetched, failed = _download(
        target, phase, [*download, *extra_index, *IMPATIENT, *without_cuda], may_fail=True
    )
    if failed is None:
        return fetched
    if fetched.bytes_by_file:  # found, but interrupted: retry with pip's default timeouts
        shutil.rmtree(folder, ignore_errors=True)
        return _download(target, phase, [*download, *extra_index, *without_cuda])[0]
    path = urlsplit(CPU_INDEX).path
    is_silent = any(path in line for line in fetched.retries)
    answered = "does not respond" if is_silent else "has none that matches"
    target.run.on_line(_default_wheel_note(target, lines, answered))
    return _download(target, "DOWNLOAD torch", [*download, *lines])[0]


def _without_cuda(line: str) -> str:
    """Return the requirement for the CPU build if it is for an exact version, else unchanged."""
    exact = _EXACT.fullmatch(line)
    if exact is None:
        return line
    return f"{exact['name']}=={exact['version']}+cpu{exact['rest'] or ''}"


def _download(
    target: Target, phase: str, argv: Sequence[str], may_fail: bool = False
) -> tuple[DownloadSummary, ImageBuildError | None]:
    """Run a download and return its summary and, if it `may_fail`, the error (None if none)."""
    fetched = DownloadSummary(target.run.on_line)
    try:
        target.command(phase, argv, replace(target.run, on_line=fetched.feed))
    except ImageBuildError as error:
        target.run.check(phase)  # do not retry if the build was stopped or timed out
        if not may_fail:
            raise
        return fetched, error
    return fetched, None


def _default_wheel_note(target: Target, lines: Sequence[str], answered: str) -> str:
    why = (
        f"no CPU wheel of {', '.join(lines)} was found: {CPU_INDEX} {answered}, and pip's"
        " configuration names no other source with one"
    )
    sizes = _default_wheel_sizes(target, lines)
    if sizes is None:
        much = "The default wheel can include CUDA: several GB, including NVIDIA's packages"
    elif any(map(_OF_CUDA.match, sizes)):
        much = (
            "The default wheel includes CUDA, which no node here can use:"
            f" {megabytes(sum(sizes.values()))} in {len(sizes)} packages, including NVIDIA's"
        )
    else:
        return f"[NOTE] {why}. The default wheel is {megabytes(sum(sizes.values()))}, without CUDA"
    return (
        f"[NOTE] {why}. {much}. The build continues with it. To download less, stop the run and"
        " put the CPU wheel into a folder that pip searches: export PIP_FIND_LINKS=FOLDER"
    )


def _default_wheel_sizes(target: Target, lines: Sequence[str]) -> dict[str, int] | None:
    """Return the sizes in bytes of the default wheel and its CUDA packages, or None if unknown.

    uv reads the sizes from the index without downloading any package.
    """
    if not target.uv:
        return None
    asked, answer = target.venv / "torch.in", target.venv / "pylock.torch.toml"
    asked.write_text("".join(f"{line}\n" for line in lines))
    python = ["--python", str(target.venv / "bin" / "python"), "--format", "pylock.toml"]
    deadline = min(target.run.deadline, time.monotonic() + _SIZING_SECONDS)
    run = replace(target.run, deadline=deadline, on_line=lambda line: None)
    quietly = ["pip", "compile", "--quiet", *python, str(asked), "--output-file", str(answer)]
    try:
        target.command("MEASURE torch", [*target.uv, *quietly], run)
        packages = tomllib.loads(answer.read_text())["packages"]
        sizes = {package["name"]: _size_here(package["wheels"]) for package in packages}
    except (ImageBuildError, OSError, KeyError, ValueError):
        target.run.check("MEASURE torch")
        return None
    finally:
        asked.unlink()
        answer.unlink(missing_ok=True)
    wanted = {
        name: size for name, size in sizes.items() if _FAMILY.match(name) or _OF_CUDA.match(name)
    }
    known = {name: size for name, size in wanted.items() if size is not None}
    return known if known and len(known) == len(wanted) else None


def _size_here(wheels: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the size in bytes of the wheel for this machine and Python, or None if unknown."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    fits = re.compile(rf"-({version}|py3|py2\.py3)-.*(linux.*{platform.machine()}|any)\.whl")
    sizes = [
        wheel["size"]
        for wheel in wheels
        if fits.search(wheel.get("name") or wheel["url"]) and "size" in wheel
    ]
    return max(sizes, default=None)
