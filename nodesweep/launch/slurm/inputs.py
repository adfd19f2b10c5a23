"""A job's inputs and results in the shared folder: its code, its metrics file and its logs."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from nodesweep import configs
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import best_effort, file_error
from nodesweep.launch.saved_logs import read_saved_log, write_log
from nodesweep.launch.slurm.launcher import read_claim, section_of
from nodesweep.launch.slurm.script import CLOCK_FOLDER
from nodesweep.scaling import names
from nodesweep.scaling.job import LogLine
from nodesweep.scaling.outcome.metrics_file import (
    MAX_BUDGET_BYTES,
    MAX_BUDGET_FILES,
    MAX_METRICS_BYTES,
    UnusableMetrics,
    parse_metrics,
)
from nodesweep.scaling.secrets import LogHider

logger = logging.getLogger("nodesweep.results")
_CLOCK_FILES = (
    "nodesweep_budget.py", "nodesweep_clock.py", "nodesweep_flops.py", "nodesweep_laps.py",
    "nodesweep_measure.py", "sitecustomize.py",
)  # fmt: skip
"""Files that measure a program: part of the image on SageMaker, next to the code here."""
_FIRST_BYTES, _LAST_BYTES = 8 << 20, 1 << 20
"""Bytes that are saved from the start and from the end of a node's log."""


def code_uri(platform: PlatformConfig, key: str) -> str:
    """Return the folder of the code with this key, and of the files that measure it."""
    digest = hashlib.sha256(b"".join(_clock_files().values())).hexdigest()[:8]
    folder, _, _ = key.rpartition("/")
    return f"{section_of(platform).folder}/{folder}-{digest}"


def send_code(platform: PlatformConfig, key: str, body: bytes) -> str:
    """Unpack the code in the shared folder, unless it is there already; return its folder."""
    target = Path(code_uri(platform, key))
    fresh = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        if target.is_dir():
            return str(target)
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
            # Debian 12's Python 3.11.2 has no filters; there the attribute is not used.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(fresh)
        (fresh / CLOCK_FOLDER).mkdir()
        for name, content in _clock_files().items():
            (fresh / CLOCK_FOLDER / name).write_bytes(content)
        try:
            os.rename(fresh, target)
        except OSError:  # another run was faster, with the same files
            if not target.is_dir():
                raise
    except OSError as error:
        raise file_error(target, error) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return str(target)


def _clock_files() -> Mapping[str, bytes]:
    image = Path(configs.__file__).resolve().parent.parent / "infra" / "image"
    return {name: (image / name).read_bytes() for name in _CLOCK_FILES}


def shared_folder(platform: PlatformConfig, folder: str) -> str:
    """Return where jobs read a dataset in this folder: there, since the nodes share it."""
    return f"{Path(folder).resolve()}/"


def read_metrics(platform: PlatformConfig, sweep: str, job_name: str) -> Mapping[str, Any] | None:
    """Return the metrics.json of a job, the one nearest to the output folder; None without one."""
    output = Path(section_of(platform).folder, job_name, "output")
    try:
        found = sorted(output.rglob(names.METRICS_FILE), key=lambda path: len(path.parts))
        if not found:
            return None
        if (size := found[0].stat().st_size) > MAX_METRICS_BYTES:
            raise UnusableMetrics(
                f"metrics.json has {size:,} bytes; the maximum is {MAX_METRICS_BYTES:,}"
            )
        budgets = sorted(output.rglob("nodesweep-budget-*.json"))[:MAX_BUDGET_FILES]
        parts = [path.read_bytes() for path in budgets if path.stat().st_size <= MAX_BUDGET_BYTES]
        metrics = parse_metrics(found[0].read_bytes(), parts)
    except (UnusableMetrics, ValueError) as error:
        logger.warning("%s: %s; continuing without the program's metrics", output, error)
        return None
    except OSError as error:
        raise file_error(output, error) from error
    return metrics if isinstance(metrics, dict) else None


def read_log(
    platform: PlatformConfig, job_name: str, folder: Path, completed: bool
) -> Iterable[LogLine]:
    """Return the lines of an ended job, and save its log in `folder`, a file for each node.

    The nodes' files have no times, so a line has the time at which its file was last written.
    """
    with best_effort(f"the log of {job_name} can't be read"):
        save_log(platform, job_name, folder)
    return read_saved_log(sorted(folder.glob(names.log_file(job_name, "*"))))


def save_log(platform: PlatformConfig, job_name: str, folder: Path) -> list[Path]:
    """Save the log of every node of an ended job, and that of its script; return the files."""
    place = Path(section_of(platform).folder, job_name)
    try:
        read_claim(place)
        return [
            _save(path, folder / names.log_file(job_name, path.stem))
            for path in sorted([*place.glob("node-*.log"), *place.glob("script.log")])
            if path.stat().st_size
        ]
    except OSError as error:
        raise file_error(place, error) from error


def _save(source: Path, target: Path) -> Path:
    written_ms = int(source.stat().st_mtime * 1000)
    lines = LogHider().hide(_lines(source))
    return write_log(target, (LogLine(written_ms, source.stem, line) for line in lines))


def _lines(source: Path) -> Iterator[str]:
    with source.open("rb") as file:
        head = file.read(_FIRST_BYTES)
        head = head[: head.rfind(b"\n") + 1] or head  # the rest of a line is read with the next
        yield from head.decode(errors="replace").splitlines()
        left_out = source.stat().st_size - len(head) - _LAST_BYTES
        if left_out > 0:
            yield f"… {left_out} bytes omitted here; full log: {source}"
        file.seek(len(head) + max(0, left_out))
        yield from file.read(_LAST_BYTES).decode(errors="replace").splitlines()
