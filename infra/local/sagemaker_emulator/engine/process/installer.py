"""Creates the virtual environment of an image and installs its packages."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sagemaker_emulator.engine.host.process_tree import (
    MARKER_NODE,
    MARKER_STATE,
    Membership,
    kill_all,
    node_marks,
)
from sagemaker_emulator.engine.process import torch_wheel
from sagemaker_emulator.engine.process.build_run import KILL_SECONDS, BuildRun
from sagemaker_emulator.engine.process.download_lines import DownloadSummary
from sagemaker_emulator.engine.process.image_content import (
    Content,
    PlacedInstall,
    requirement_lines,
    venv_of,
)
from sagemaker_emulator.engine.process.torch_wheel import Target, asks_for_torch, install_torch
from sagemaker_emulator.engine.run.node_files import state_id
from sagemaker_emulator.environment import server_environment
from sagemaker_emulator.interfaces import ImageBuildError
from sagemaker_emulator.process_identity import start_ticks

_BUILDER = "builder/"  # prefix of <pid>/<start ticks> of the building process
_ELF = b"\x7fELF"
_PIP_CHOOSES = re.compile(
    r"[^=]*\.(index-url|extra-index-url|pypi-url|find-links|no-index|constraint|require-hashes"
    r"|only-binary|no-binary|pre)="
)
"""Lines of `pip config list` that determine what is installed, and from where.

uv does not read pip's configuration, so it would install a private package from the public index,
where anybody can publish a package with the same name.
"""
# Variables that point to the builder's Python environment instead of the image's.
_NOT_PASSED = frozenset(
    {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"}
)


def make_venv(venv: Path, content: Content, folder: Path, run: BuildRun, lock_fd: int) -> None:
    """Create a virtual environment and run the `pip install`s of the image in it."""
    environment = installer_environment(content.installer_arguments, venv.parent)
    if venv.exists():  # left by an interrupted build
        shutil.rmtree(venv)
    if content.base is not None:
        run.check("COPY virtual environment")
        run.on_line("[COPY virtual environment]")
        _copy_venv(venv_of(content.base), venv)
    else:
        command = [sys.executable, "-P", "-m", "venv", str(venv)]
        run.command("MAKE virtual environment", command, environment, folder, lock_fd)
    fetched = DownloadSummary(run.on_line)
    hearing = replace(run, on_line=fetched.feed)
    target = Target(venv, environment, folder, hearing, lock_fd, uv=_uv())
    for install in content.installs:
        _install(install, target)
    run.on_line(fetched.total_line("the image"))


def _copy_venv(base: Path, venv: Path) -> None:
    """Copy the base image's environment, but hard-link its packages to save space.

    Installers replace files instead of writing into them, so the base image stays unchanged. Files
    that contain the path of the base environment, such as scripts, are rewritten.
    """

    def not_complete(folder: str, names: Sequence[str]) -> set[str]:
        return {"complete.json"} if folder == str(base) else set()

    shutil.copytree(base, venv, symlinks=True, copy_function=os.link, ignore=not_complete)
    for file in [venv / "pyvenv.cfg", *(venv / "bin").iterdir()]:
        text = b"" if file.is_symlink() or file.is_dir() else file.read_bytes()
        if str(base).encode() in text and not text.startswith(_ELF):
            mode = file.stat().st_mode
            file.unlink()
            file.write_bytes(text.replace(str(base).encode(), str(venv).encode()))
            file.chmod(mode)


def _install(install: PlacedInstall, target: Target) -> None:
    """Run a `pip install`, with uv if possible, and verify hashes if the requirements have them."""
    wanted = [*(f"-r{path}" for path in install.requirement_files), *install.packages]
    if not wanted:
        return
    if not install.with_dependencies:
        wanted.append("--no-deps")
    if install.pins is not None:
        # Use pip because its configuration names sources of packages for the installed torch.
        pins = _write_pins(target.venv, install.pins)
        extra_index = (
            ["--extra-index-url", torch_wheel.CPU_INDEX] if asks_for_torch(install) else []
        )
        target.command(
            "INSTALL requirements", [*target.pip("install"), *extra_index, f"-c{pins}", *wanted]
        )
        return
    install_torch(install, target)
    by_pip = [*target.pip("install"), *wanted]
    is_hashed = _is_hashed(install)
    # pip infers this from the hashes, but uv does not.
    by_uv = ["--require-hashes", *wanted] if is_hashed else wanted
    is_for_uv = is_hashed or (target.uv and _is_pip_unconfigured(target))
    if not is_for_uv or not target.is_installed_by_uv("INSTALL requirements", by_uv):
        target.command("INSTALL requirements", by_pip)


def _is_hashed(install: PlacedInstall) -> bool:
    """Return True if every package has hashes, so its source does not matter."""
    lines = [line for path in install.requirement_files for line in requirement_lines(path)]
    return not install.packages and all(
        re.match(r"\w", line) and "--hash=" in line for line in lines
    )


def _is_pip_unconfigured(target: Target) -> bool:
    """Return True if pip's configuration sets no index, package source or constraint."""
    lines: list[str] = []
    run = replace(target.run, on_line=lines.append)
    command = [str(target.venv / "bin" / "python"), "-P", "-m", "pip", "config", "list"]
    try:
        target.command("READ pip's configuration", command, run)
    except ImageBuildError:  # the install reports the reason; these lines can contain passwords
        target.run.check("READ pip's configuration")
        return False
    return not any(map(_PIP_CHOOSES.match, lines))


def _write_pins(venv: Path, pattern: str) -> Path:
    """Write the lines of `pip list --format=freeze` that match to a constraints file."""
    folders = [str(folder) for folder in (venv / "lib").glob("python3*/site-packages")]
    lines = [f"{one.name}=={one.version}" for one in importlib.metadata.distributions(path=folders)]
    file = venv / "pins.txt"
    file.unlink(missing_ok=True)  # it can be a hard link to the base image's file
    file.write_text("".join(f"{line}\n" for line in sorted(lines) if re.search(pattern, line)))
    return file


def _uv() -> list[str]:
    next_to_python = Path(sys.executable).with_name("uv")
    found = str(next_to_python) if next_to_python.is_file() else shutil.which("uv")
    return [found] if found else []


def installer_environment(installer_arguments: Mapping[str, str], venvs: Path) -> dict[str, str]:
    """Return the environment variables of installers for virtual environments in this folder.

    Two of the variables identify this process as the builder that started the installers.
    """
    environment = {
        name: value
        for name, value in server_environment(os.environ).items()
        if name not in _NOT_PASSED
    }
    mark = {
        MARKER_STATE: state_id(venvs),
        MARKER_NODE: f"{_BUILDER}{os.getpid()}/{start_ticks(os.getpid())}",
    }
    return environment | {"PYTHONUNBUFFERED": "1"} | dict(installer_arguments) | mark


def end_leftovers(venvs: Path) -> None:
    """Kill the installer processes of builders that were killed, but not those of live builders."""
    for mark in node_marks(state_id(venvs)):
        pid, _, began = mark.removeprefix(_BUILDER).partition("/")
        is_builder = mark.startswith(_BUILDER) and pid.isdigit() and began.isdigit()
        if is_builder and start_ticks(int(pid)) != int(began):
            kill_all(Membership(state_id=state_id(venvs), node_prefix=mark), KILL_SECONDS)
