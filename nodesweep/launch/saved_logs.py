"""Write and read the saved logs of ended jobs, below reports/SWEEP_ID/logs/, one file per node.

Each line starts with its UTC time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from nodesweep.configs.atomic import written_atomically
from nodesweep.scaling import names
from nodesweep.scaling.job import LogLine

LOG_TAIL_LINES = 500
"""Lines per node: the toolkit and launcher add up to a hundred after the program's last line."""
BY_TIME = attrgetter("unix_milliseconds")


def read_saved_log(paths: list[Path]) -> Iterator[LogLine]:
    """Return the lines of saved files, merged by time and read lazily."""
    return heapq.merge(*(_lines_of_file(path) for path in paths), key=BY_TIME)


def write_log(path: Path, lines: Iterable[LogLine]) -> Path:
    """Save the lines of a node in its file, and return that."""
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
