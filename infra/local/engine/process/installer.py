"""Commands of an image build, and the virtual environment they make: streamed, stoppable,
with a deadline.
"""

from __future__ import annotations

import collections
import importlib.metadata
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from infra.local.engine.host.process_tree import (
    MARKER_NODE,
    MARKER_STATE,
    Membership,
    kill_all,
    node_marks,
)
from infra.local.engine.process.image_content import (
    Content,
    PlacedInstall,
    file_digest,
    requirement_lines,
    venv_of,
)
from infra.local.engine.run.node_files import state_id
from infra.local.environment import server_environment
from infra.local.interfaces import ImageBuildError
from infra.local.process_identity import start_ticks
from infra.local.tether import tethered

_LAST_LINES = 20
_TICK_SECONDS = 0.1
_KILL_SECONDS = 10.0
_BUILDER = "builder/"  # <pid>/<start ticks> of the process that builds
_TORCH = re.compile(r"(torch|torchvision|torchaudio)\b(?!-)", re.IGNORECASE)
_ELF = b"\x7fELF"
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
# The builder's own environment must not become the image's.
_NOT_PASSED = frozenset(
    {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"}
)
_PIP_OPTIONS = ("--no-input", "--progress-bar", "off", "--disable-pip-version-check")


@dataclass(frozen=True)
class BuildRun:
    """What every step of one build shares. `deadline` is a time.monotonic() value."""

    on_line: Callable[[str], None]
    stop: threading.Event
    deadline: float

    def check(self, phase: str) -> None:
        """Raise ImageBuildError where the build was stopped or its time is up."""
        if self.stop.is_set():
            raise ImageBuildError(f"{phase}: the build was stopped")
        if time.monotonic() >= self.deadline:
            raise ImageBuildError(f"{phase}: the build's time was up")

    def command(
        self,
        phase: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        lock_fd: int,
    ) -> None:
        """Run one command, which dies with this process.
        It holds the lock too, until it has ended.
        """
        self.check(phase)
        self.on_line(f"[{phase}]")
        last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        process = subprocess.Popen(
            # pip must not write on into an environment that the next builder starts anew. What it
            # has started (build back ends, compilers) is not tethered; that carries the builder's
            # mark, and `end_leftovers` finds it.
            tethered(*argv),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock_fd],
        )
        reader = threading.Thread(target=self._read, args=(process, last_lines), daemon=True)
        reader.start()
        try:
            while process.poll() is None:
                self.check(phase)
                self.stop.wait(_TICK_SECONDS)
        finally:
            kill_all(Membership(session_ids=frozenset({process.pid})), _KILL_SECONDS)
            process.wait()
            reader.join(_KILL_SECONDS)
        if process.returncode != 0:
            output = "\n".join(last_lines)
            raise ImageBuildError(
                f"{phase} failed with exit code {process.returncode}. Its last lines:\n{output}"
            )

    def _read(self, process: subprocess.Popen[bytes], last_lines: collections.deque[str]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            last_lines.append(line)
            self.on_line(line)


@contextmanager
def build_lock(path: Path, run: BuildRun) -> Iterator[int]:
    """Hold a file lock against builds of the same thing, in this process or another;
    gives its descriptor.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pause_seconds = 0.05
    with path.open("w") as file:
        while True:
            run.check("WAIT for another build of the same environment")
            try:
                flock(file, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                run.stop.wait(pause_seconds * random.uniform(0.5, 1.0))
                pause_seconds = min(pause_seconds * 2, 1.0)
        yield file.fileno()


def make_venv(venv: Path, content: Content, folder: Path, run: BuildRun, lock_fd: int) -> None:
    """Make a virtual environment and carry out the image's `pip install`s in it, in their order."""
    environment = installer_environment(content.installer_arguments, venv.parent)
    if venv.exists():  # half of an earlier build
        shutil.rmtree(venv)
    if content.base is not None:
        run.check("COPY virtual environment")
        run.on_line("[COPY virtual environment]")
        _copy_venv(venv_of(content.base), venv)
    else:
        command = [sys.executable, "-P", "-m", "venv", str(venv)]
        run.command("MAKE virtual environment", command, environment, folder, lock_fd)
    for install in content.installs:
        _install(venv, install, environment, folder, run=run, lock_fd=lock_fd)


def _copy_venv(base: Path, venv: Path) -> None:
    """The base's environment in another place, its packages as hard links, which take no space.

    Installers replace a file, they do not write into it, so the base stays as it is. What names the
    base's place, such as the first lines of its scripts, is written anew.
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


def _install(
    venv: Path,
    install: PlacedInstall,
    environment: Mapping[str, str],
    folder: Path,
    run: BuildRun,
    lock_fd: int,
) -> None:
    """One `pip install`, compiled to bytecode.
    Hashes are checked where the requirements have them.
    """
    wanted = [*(f"-r{path}" for path in install.requirement_files), *install.packages]
    if not wanted:
        return
    if not install.with_dependencies:
        wanted.append("--no-deps")
    python = str(venv / "bin" / "python")
    pip = [python, "-P", "-m", "pip", "install", *_PIP_OPTIONS]
    if install.pins is not None:
        # what fits the torch that is there lies where pip's configuration says
        pins = _write_pins(venv, install.pins)
        run.command(
            "INSTALL requirements", [*pip, f"-c{pins}", *wanted], environment, folder, lock_fd
        )
        return
    _install_torch(venv, install, environment, folder, run=run, lock_fd=lock_fd)
    uv = [
        *_uv(),
        "pip",
        "install",
        "--python",
        python,
        "--compile-bytecode",
        "--no-progress",
        *wanted,
    ]
    if not _uv():
        run.command("INSTALL requirements", [*pip, *wanted], environment, folder, lock_fd)
        return
    try:
        run.command("INSTALL requirements with uv", uv, environment, folder, lock_fd)
    except ImageBuildError:
        run.check("INSTALL requirements with uv")
        run.on_line(
            "uv could not install the requirements (it reads no pip configuration); pip tries"
        )
        run.command("INSTALL requirements", [*pip, *wanted], environment, folder, lock_fd)


def _write_pins(venv: Path, pattern: str) -> Path:
    """What `pip list --format=freeze` says of the packages that the pattern finds,
    as a constraints file.
    """
    folders = [str(folder) for folder in (venv / "lib").glob("python3*/site-packages")]
    lines = [f"{one.name}=={one.version}" for one in importlib.metadata.distributions(path=folders)]
    file = venv / "pins.txt"
    file.unlink(missing_ok=True)  # perhaps a link to the base's
    file.write_text("".join(f"{line}\n" for line in sorted(lines) if re.search(pattern, line)))
    return file


def _install_torch(
    venv: Path,
    install: PlacedInstall,
    environment: Mapping[str, str],
    folder: Path,
    run: BuildRun,
    lock_fd: int,
) -> None:
    """Through pip: where torch's CPU wheels come from is pip's configuration (PIP_EXTRA_INDEX_URL).

    uv, which takes the rest in a tenth of pip's time, reads none of that. Hashes are checked on the
    wheel that pip chose without them: it prefers one whose link shows a listed hash, as PyPI's with
    CUDA does, to a newer one (+cpu) that it would have to read first, in a folder (PIP_FIND_LINKS).
    """
    lines = [line for path in install.requirement_files for line in requirement_lines(path)]
    torch = [line for line in (*lines, *install.packages) if _TORCH.match(line)]
    if not torch:
        return
    pip = [str(venv / "bin" / "python"), "-P", "-m", "pip"]
    without_hashes = [_HASH.sub("", line).strip() for line in torch]
    if torch == without_hashes:
        run.command(
            "INSTALL torch",
            [*pip, "install", *_PIP_OPTIONS, "--no-deps", *torch],
            environment,
            folder,
            lock_fd,
        )
        return
    download = venv / "torch-download"
    command = [
        *pip,
        "download",
        *_PIP_OPTIONS,
        "--no-deps",
        "--dest",
        str(download),
        *without_hashes,
    ]
    run.command("DOWNLOAD torch", command, environment, folder, lock_fd)
    wheels = sorted(download.iterdir())
    listed = {digest for line in torch for digest in _HASH.findall(line)}
    for wheel in wheels:
        if (digest := file_digest(wheel)) not in listed:
            raise ImageBuildError(
                f"DOWNLOAD torch: {wheel.name} has sha256:{digest}, which is none of the"
                " requirement's hashes; where it comes from an index of your choice,"
                " add it to the requirement"
            )
    command = [*pip, "install", *_PIP_OPTIONS, "--no-deps", *map(str, wheels)]
    run.command("INSTALL torch", command, environment, folder, lock_fd)
    shutil.rmtree(download)


def _uv() -> list[str]:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    return [found] if found else []


def installer_environment(installer_arguments: Mapping[str, str], venvs: Path) -> dict[str, str]:
    """What installers into the environments of this folder get,
    with the mark of this process as their builder.
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
    """End what the installers of killed builders left running;
    live builders of the same folder keep theirs.
    """
    for mark in node_marks(state_id(venvs)):
        pid, _, began = mark.removeprefix(_BUILDER).partition("/")
        is_builder = mark.startswith(_BUILDER) and pid.isdigit() and began.isdigit()
        if is_builder and start_ticks(int(pid)) != int(began):
            kill_all(Membership(state_id=state_id(venvs), node_prefix=mark), _KILL_SECONDS)
