"""Pack the user's training code reproducibly, and upload it under its digest for the toolkit.

This module also records which code has completed a point.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodesweep.configs import INIT_CONFIG
from nodesweep.configs.models import BenchmarkConfig, TrainingConfig
from nodesweep.errors import PreflightRefused, best_effort
from nodesweep.launch.registry import Backend
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.folder import Entry, holds_secret, is_one_of, walk
from nodesweep.tasks.image.packages import REQUIREMENTS_FILE

MAX_SOURCE_BYTES = 50 * 1024 * 1024


@dataclass(frozen=True)
class Code:
    """The files of source_dir to upload, and the names of files left out as possible secrets."""

    files: tuple[Path, ...]
    secrets: tuple[str, ...]


@dataclass(frozen=True)
class LocalCode:
    """The code of a config on this machine.

    Attributes:
        training: the section that names it.
        others: folders that may be in its folder without being code, by the field that names them.
    """

    training: TrainingConfig
    others: Mapping[str, str]

    @classmethod
    def of(cls, config: BenchmarkConfig) -> LocalCode:
        """Return the config's code; reports and a local dataset are no part of it."""
        others = {"report.directory": config.report.directory}
        if config.dataset is not None and not config.dataset.is_remote:
            others["dataset.source"] = config.dataset.source
        return cls(config.training, others)

    def pack(self, with_requirements: bool = True) -> bytes:
        """Return the packed code, leaving out other files that may be in its folder.

        Reports, a local dataset and the config of `nodesweep init` are left out: otherwise a
        sweep's own report, or a larger budget, would change the code's digest. If a layer of the
        image has the packages, `with_requirements=False` leaves out the requirements.txt, which
        the toolkit would install at every start.

        Raises:
            PreflightRefused: the code cannot be packed; see pack().
        """
        more = () if with_requirements else (self._folder / REQUIREMENTS_FILE,)
        return pack(self._folder, self.training.entry_point, [*self._left_out, *more])

    def list_files(self) -> Code:
        """Return the code's files.

        Raises:
            PreflightRefused: a link is broken or points outside the folder.
        """
        return _list_code(self._folder, self._left_out)

    @property
    def _folder(self) -> Path:
        return Path(str(self.training.source_dir))

    @property
    def _left_out(self) -> Sequence[Path]:
        """Files and folders that may be in source_dir without being code."""
        return [*map(Path, self.others.values()), self._folder / INIT_CONFIG]

    def entry_point_problem(self) -> str | None:
        """Return why the packed code would lack its entry point; None if it would not.

        For example, it is not a file, or is in a folder of reports or of a dataset, which are not
        sent.
        """
        training = self.training
        if training.source_dir is None or not self._folder.is_dir():
            return None
        root = self._folder.resolve()
        program = root / training.entry_point
        if ".." in Path(training.entry_point).parts or root not in program.parents:
            return None  # reported by a rule that needs no files
        if not program.is_file():
            return (
                f"training.entry_point: {training.entry_point} is not a file in"
                f" training.source_dir {training.source_dir}"
            )
        for field, folder in self.others.items():
            other = Path(folder).resolve()
            if root in other.parents and other in program.parents:
                return (
                    f"training.entry_point: {training.entry_point} is in {field} {folder}, which is"
                    " not sent with the code; move the program, or change that field"
                )
        return None


def _list_code(source_dir: Path, left_out: Sequence[Path]) -> Code:
    """Return the code's files; raise PreflightRefused if a link is broken or points outside."""
    is_other = is_one_of(left_out, source_dir)
    secrets: list[str] = []

    def is_left_out(entry: Entry) -> bool:
        if is_other(entry):
            return True
        if holds_secret(entry):
            if entry.own_name != ".git":  # nearly every repository has one, and it is hidden anyway
                secrets.append(entry.name)
            return True
        return entry.own_name == "__pycache__" or entry.own_name.startswith(".")

    walked = walk(source_dir, is_left_out)
    if walked.refused:
        raise PreflightRefused(
            *(f"training.source_dir: {source_dir / it.name} {it.why}" for it in walked.refused)
        )
    return Code(walked.files, tuple(sorted(secrets)))


def pack(source_dir: Path, entry_point: str, left_out: Sequence[Path] = ()) -> bytes:
    """Return sourcedir.tar.gz of a folder, without caches, hidden files and secrets.

    Equal contents give equal bytes.

    Args:
        source_dir: the folder.
        entry_point: path of the program in the folder.
        left_out: files and folders to exclude.

    Raises:
        PreflightRefused: there is no entry point, the files exceed MAX_SOURCE_BYTES, or a link
            is broken or points outside the folder.
    """
    if not (source_dir / entry_point).is_file():
        raise PreflightRefused(
            f"training.entry_point: {entry_point} is not a file in training.source_dir {source_dir}"
        )
    paths = _list_code(source_dir, left_out).files
    total = sum(path.stat().st_size for path in paths)
    if total > MAX_SOURCE_BYTES:
        raise PreflightRefused(
            f"training.source_dir: {source_dir} contains {total} bytes, more than"
            f" {MAX_SOURCE_BYTES}; put data in the dataset"
        )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in paths:
            info = tarfile.TarInfo(path.relative_to(source_dir).as_posix())
            info.size = path.stat().st_size
            info.mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
            archive.addfile(info, io.BytesIO(path.read_bytes()))
    return gzip.compress(buffer.getvalue(), mtime=0)


def code_uri(backend: Backend, code: LocalCode, with_requirements: bool) -> str:
    """Return the URI at which jobs find the code in its current state once it is uploaded.

    Raises:
        PreflightRefused: the code cannot be packed; see pack().
    """
    return backend.code_uri(_key(backend, code.pack(with_requirements)))


def changed_files(
    backend: Backend, code: LocalCode, source_uri: str, with_requirements: bool
) -> list[str]:
    """Return the files that were added, changed or deleted since the code was uploaded.

    The list is empty if the uploaded archive can't be read, and on a cluster, which keeps none.

    Raises:
        PreflightRefused: the code cannot be packed; see pack().
    """
    prefix = f"{backend.platform.prefix}/code/"
    name = source_uri.rpartition(f"/{prefix}")[2]
    body = None
    if name.endswith(".tar.gz"):
        with best_effort("unknown which files of the code have changed"):
            body = backend.store.get(f"{prefix}{name}")
    if body is None or backend.code_uri(_key(backend, body)) != source_uri:
        return []
    before, now = _contents(body), _contents(code.pack(with_requirements))
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _contents(packed: bytes) -> dict[str, tuple[int, bytes]]:
    """Return the mode and the content of each packed file."""
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        return {
            member.name: (member.mode, file.read())
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def _key(backend: Backend, packed: bytes) -> str:
    return names.source_key(backend.platform.prefix, hashlib.sha256(packed).hexdigest())


def upload_source(backend: Backend, code: LocalCode, with_requirements: bool) -> str:
    """Upload the packed training code under its digest, and return its URI for jobs."""
    body = code.pack(with_requirements)
    return backend.send_code(_key(backend, body), body)


def is_code_proven(store: Store, code_digest: str) -> bool:
    """Return True if code with this digest has completed a point; False if unknown."""
    with best_effort("unknown whether this code has run before"):
        return store.get(names.proven_code_key(store.prefix, code_digest)) is not None
    return False


def mark_code_proven(store: Store, code_digest: str, sweep: str) -> None:
    """Record that the training code has completed a point.

    The first sweep that completes a point writes the record. If that fails, later sweeps only start
    more slowly.
    """
    with best_effort("can't record that this code has completed a point"):
        key = names.proven_code_key(store.prefix, code_digest)
        if store.get(key) is None:
            store.put(key, names.pretty_json({"sweep_id": sweep}))
