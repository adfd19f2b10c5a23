"""Write a job's code to the shared folder, and read its metrics file and logs from there."""

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
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.launch.slurm.launcher import read_claim
from nodesweep.launch.slurm.script import CLOCK_FOLDER
from nodesweep.launch.store import reachable
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
    "nodesweep_budget.py", "nodesweep_clock.py", "nodesweep_exchange.py", "nodesweep_flops.py",
    "nodesweep_laps.py", "nodesweep_measure.py", "nodesweep_network.py", "sitecustomize.py",
)  # fmt: skip
"""Files that measure a program; on SageMaker they are in the image, on Slurm next to the code."""
_FIRST_BYTES, _LAST_BYTES = 8 << 20, 1 << 20
"""Number of bytes to save from the start and from the end of a node's log."""


def code_uri(root: str, key: str) -> str:
    """Return the folder for the code with this key, and for the files that measure it."""
    digest = hashlib.sha256(b"".join(_clock_files().values())).hexdigest()[:8]
    folder, _, _ = key.rpartition("/")
    return f"{root}/{folder}-{digest}"


def send_code(root: str, key: str, body: bytes) -> str:
    """Unpack the code into the shared folder, unless it already exists; return its folder."""
    target = Path(code_uri(root, key))
    fresh = target.with_name(f".{target.name}.{uuid4().hex}")
    with reachable(target):
        if target.is_dir():
            return str(target)
        try:
            with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
                # Python 3.11.2 (Debian 12) has no filters, and ignores the attribute.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(fresh)
            (fresh / CLOCK_FOLDER).mkdir()
            for name, content in _clock_files().items():
                (fresh / CLOCK_FOLDER / name).write_bytes(content)
            os.rename(fresh, target)
        except OSError:
            if not target.is_dir():  # otherwise, another run with the same files was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return str(target)


def _clock_files() -> Mapping[str, bytes]:
    image = Path(configs.__file__).resolve().parent.parent / "infra" / "image"
    return {name: (image / name).read_bytes() for name in _CLOCK_FILES}


def read_metrics(platform: SlurmPlatform, sweep: str, job_name: str) -> Mapping[str, Any] | None:
    """Return the job's metrics.json that is nearest to the output folder, or None without one."""
    output = Path(platform.folder, job_name, "output")
    with reachable(output):
        found = sorted(output.rglob(names.METRICS_FILE), key=lambda path: len(path.parts))
        if not found:
            return None
        budgets = sorted(output.rglob("nodesweep-budget-*.json"))[:MAX_BUDGET_FILES]
        parts = [path.read_bytes() for path in budgets if path.stat().st_size <= MAX_BUDGET_BYTES]
        try:
            if (size := found[0].stat().st_size) > MAX_METRICS_BYTES:
                raise UnusableMetrics(
                    f"metrics.json has {size:,} bytes; the maximum is {MAX_METRICS_BYTES:,}"
                )
            metrics = parse_metrics(found[0].read_bytes(), parts)
        except (UnusableMetrics, ValueError) as error:
            logger.warning("%s: %s; continuing without the program's metrics", output, error)
            return None
    return metrics if isinstance(metrics, dict) else None


def read_nodes(platform: SlurmPlatform, job_name: str) -> Mapping[str, Iterable[LogLine]]:
    """Return the lines of every node of an ended job, and of its script, with secrets masked.

    The files have no timestamps, so a line has the time at which its file was last written.
    """
    place = Path(platform.folder, job_name)
    with reachable(place):
        read_claim(place)
        paths = sorted([*place.glob("node-*.log"), *place.glob("script.log")])
        return {path.stem: _lines_of_node(path) for path in paths if path.stat().st_size}


def _lines_of_node(path: Path) -> Iterator[LogLine]:
    written_ms = int(path.stat().st_mtime * 1000)
    return (LogLine(written_ms, path.stem, line) for line in LogHider().hide(_lines(path)))


def _lines(path: Path) -> Iterator[str]:
    with reachable(path), path.open("rb") as file:
        head = file.read(_FIRST_BYTES)
        head = head[: head.rfind(b"\n") + 1] or head  # an incomplete line is read later
        yield from head.decode(errors="replace").splitlines()
        left_out = path.stat().st_size - len(head) - _LAST_BYTES
        if left_out > 0:
            yield f"… {left_out} bytes omitted here; full log: {path}"
        file.seek(len(head) + max(0, left_out))
        yield from file.read(_LAST_BYTES).decode(errors="replace").splitlines()
