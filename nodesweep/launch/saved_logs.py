"""Save and read the logs of ended jobs, below reports/SWEEP_ID/logs/, one file per node.

Each line starts with its UTC time. Every reader of an ended job's log, including the report, uses
these files.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from nodesweep.aws.platform import patient
from nodesweep.configs.atomic import written_atomically
from nodesweep.errors import best_effort
from nodesweep.scaling import names
from nodesweep.scaling.job import LogLine

logger = logging.getLogger("nodesweep.results")
ReadNodes = Callable[[str], Mapping[str, Iterable[LogLine]]]
"""Returns the lines of every node of an ended job, with secrets masked; a node without a log has
none. May call the backend."""
LOG_TAIL_LINES = 500
"""Lines per node: the toolkit and launcher add up to a hundred after the program's last line."""
BY_TIME = attrgetter("unix_milliseconds")


@patient
def read_job_log(
    read_nodes: ReadNodes, job_name: str, folder: Path, completed: bool
) -> Iterable[LogLine]:
    """Return all nodes' lines of an ended job's log in time order, and save the log in `folder`.

    A completed job's log is read once. Any other job's is read again, because its last lines matter
    and may arrive late; the saved copy is used if the platform has deleted its own. A log that
    cannot be read only causes a warning, and one that cannot be saved is returned anyway.
    """
    pattern = names.log_file(job_name, "*")
    if not completed or not any(folder.glob(pattern)):
        with best_effort(f"the log of {job_name} can't be read"):
            try:
                save_log(read_nodes(job_name), job_name, folder)
            except OSError as error:
                logger.warning("the log of %s can't be saved: %s", job_name, error)
                return list(heapq.merge(*read_nodes(job_name).values(), key=BY_TIME))
    return read_saved_log(sorted(folder.glob(pattern)))


def save_log(nodes: Mapping[str, Iterable[LogLine]], job_name: str, folder: Path) -> list[Path]:
    """Save the lines of every node of a job in a file of its own, and return the files."""
    return [
        _write_log(folder / names.log_file(job_name, host), lines) for host, lines in nodes.items()
    ]


def read_saved_log(paths: list[Path]) -> Iterator[LogLine]:
    """Return the lines of saved files, merged by time and read lazily."""
    return heapq.merge(*(_lines_of_file(path) for path in paths), key=BY_TIME)


def _write_log(path: Path, lines: Iterable[LogLine]) -> Path:
    with written_atomically(path) as file:
        for line in lines:
            file.write(f"{line.at} {line.text}\n".encode(errors="replace"))
    return path


def log_tail(log: Iterable[LogLine], lines: int = LOG_TAIL_LINES) -> list[str]:
    """Return the last lines of every node of a log, in time order, as "algo-N: text".

    The limit is per node, so that others do not crowd out the one that failed first and fell
    silent.
    """
    last: defaultdict[str, deque[LogLine]] = defaultdict(lambda: deque(maxlen=lines))
    for line in log:
        last[line.host].append(line)
    return [f"{line.host}: {line.text}" for line in heapq.merge(*last.values(), key=BY_TIME)]


def _lines_of_file(path: Path) -> Iterator[LogLine]:
    parsed = names.parse_log_file(path.name) or names.parse_validation_log_file(path.name)
    host = parsed[1] if parsed else path.stem
    milliseconds = 0
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            time, _, text = line.rstrip("\n").partition(" ")
            if (found := _milliseconds(time)) is None:  # further lines of a message have no time
                text = line.rstrip("\n")
            else:
                milliseconds = found
            yield LogLine(milliseconds, host, text)


def _milliseconds(iso: str) -> int | None:
    """Return the Unix time in ms at the start of a saved line; None if there is none."""
    try:
        return round(datetime.fromisoformat(iso).timestamp() * 1000) if iso.endswith("Z") else None
    except ValueError:
        return None
