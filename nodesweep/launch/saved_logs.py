"""Save and read the logs of ended jobs, below reports/SWEEP_ID/logs/, one file per node.

Each line starts with its UTC time. Every reader of an ended job's log, including the report, uses
these files.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path

from nodesweep.aws.platform import patient
from nodesweep.configs.atomic import written_atomically
from nodesweep.errors import best_effort
from nodesweep.scaling import names
from nodesweep.scaling.job import JobStatus, LogLine

logger = logging.getLogger("nodesweep.results")
ReadNodes = Callable[[str], Mapping[str, Iterable[LogLine]]]
"""Function that returns the lines of every node of an ended job, with secrets masked.

A node without a log has no lines. The function may call the backend.
"""
LOG_TAIL_LINES = 500
"""Lines per node; the toolkit and launcher add up to 100 lines after the program's last one."""
SETTLING_SECONDS = 120.0
"""Seconds after a job's end during which lines and files can still arrive.

NFS clients cache attributes for up to 60 s (acregmax and acdirmax in nfs(5)); CloudWatch Logs
documents no limit.
"""
FINAL_SECONDS = 3600.0
"""Seconds after a job's end after which a node without lines is not expected to get any."""
BY_TIME = attrgetter("unix_milliseconds")
_NODE = re.compile(r"[a-z]+-\d+")
"""Pattern of a node's host name, which excludes the script of a Slurm job."""


class _Shortened(Exception):
    """The platform has fewer lines of a node's log than the saved copy."""


@patient
def read_job_log(read_nodes: ReadNodes, job: JobStatus, folder: Path) -> Iterable[LogLine]:
    """Return the log lines of all nodes of an ended job by time, and save the log in `folder`.

    The log of a completed job is read until is_saved() returns True. The log of any other job is
    always read again, because its last lines matter. If the platform has deleted it, the saved copy
    is used. A log that can't be read only causes a warning; one that can't be saved is returned
    anyway.
    """
    if not job.completed or not is_saved(job, folder):
        with best_effort(f"the log of {job.name} can't be read"):
            try:
                save_log(read_nodes(job.name), job.name, folder)
            except OSError as error:
                logger.warning("the log of %s can't be saved: %s", job.name, error)
                return list(heapq.merge(*read_nodes(job.name).values(), key=BY_TIME))
    return read_saved_log(saved_files(job.name, folder))


def is_saved(job: JobStatus, folder: Path) -> bool:
    """Return True if the complete log of an ended job is saved in `folder`.

    A log is complete if every node has a file that was saved at least SETTLING_SECONDS after the
    job's end. After FINAL_SECONDS, files of some nodes are enough.
    """
    key, ended_at = names.parse_job_name(job.name), job.ended_at or job.changed_at
    nodes = job.nodes if key is None else key.nodes  # a list of jobs has no number of nodes
    files = [path for path in saved_files(job.name, folder) if _NODE.fullmatch(_host_of(path))]
    if ended_at is None or not files:
        return False
    seconds = min(path.stat().st_mtime for path in files) - ended_at.timestamp()
    return seconds >= (SETTLING_SECONDS if len(files) >= nodes else FINAL_SECONDS)


def saved_files(job_name: str, folder: Path) -> list[Path]:
    """Return the files of a job's saved log, one per node with lines."""
    return sorted(folder.glob(names.log_file(job_name, "*")))


def save_log(nodes: Mapping[str, Iterable[LogLine]], job_name: str, folder: Path) -> list[Path]:
    """Save the lines of each node of a job in a separate file, and return the job's files.

    A node's existing file is kept if the platform has deleted some of its lines.
    """
    for host, lines in nodes.items():
        rest = iter(lines)
        if (first := next(rest, None)) is not None:
            _write_log(folder / names.log_file(job_name, host), chain([first], rest))
    return saved_files(job_name, folder)


def read_saved_log(paths: list[Path]) -> Iterator[LogLine]:
    """Return the lines of saved files, merged by time and read lazily."""
    return heapq.merge(*(_lines_of_file(path) for path in paths), key=BY_TIME)


def _write_log(path: Path, lines: Iterable[LogLine]) -> None:
    earlier = 0
    if path.exists():
        with path.open("rb") as file:
            earlier = sum(1 for _ in file)
    with suppress(_Shortened), written_atomically(path) as file:
        for line in lines:
            file.write(f"{line.at} {line.text}\n".encode(errors="replace"))
            earlier -= 1
        if earlier > 0:
            raise _Shortened
    path.touch()  # an existing copy that was kept is up to date


def log_tail(log: Iterable[LogLine], lines: int = LOG_TAIL_LINES) -> list[str]:
    """Return the last lines of every node of a log, in time order, as "algo-N: text".

    The limit is per node, so that other nodes do not crowd out the one that failed first.
    """
    last: defaultdict[str, deque[LogLine]] = defaultdict(lambda: deque(maxlen=lines))
    for line in log:
        last[line.host].append(line)
    return [f"{line.host}: {line.text}" for line in heapq.merge(*last.values(), key=BY_TIME)]


def _lines_of_file(path: Path) -> Iterator[LogLine]:
    host, milliseconds = _host_of(path), 0
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            time, _, text = line.rstrip("\n").partition(" ")
            if (found := _milliseconds(time)) is None:  # further lines of a message have no time
                text = line.rstrip("\n")
            else:
                milliseconds = found
            yield LogLine(milliseconds, host, text)


def _host_of(path: Path) -> str:
    parsed = names.parse_log_file(path.name) or names.parse_validation_log_file(path.name)
    return parsed[1] if parsed else path.stem


def _milliseconds(iso: str) -> int | None:
    """Return the Unix time in ms at the start of a saved line, or None if there is none."""
    try:
        return round(datetime.fromisoformat(iso).timestamp() * 1000) if iso.endswith("Z") else None
    except ValueError:
        return None
