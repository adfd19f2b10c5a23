"""Join the pieces of a line that SageMaker's toolkit logs as separate lines.

The toolkit logs the lines of whatever it reads from a program's pipe (`watch` in process.py of
sagemaker-training 5.1.4). `python -u`, with which torchrun starts programs, writes each argument of
print() and each part of an exception's message separately, and so does C++ to std::cerr. A read can
end after any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nodesweep.scaling.job import LogLine
from nodesweep.scaling.outcome.plain_lines import plain_lines, without_colours
from nodesweep.scaling.outcome.tracebacks import ERROR_LINE

_NAME = re.compile(r"(?:^|[\s;,])\w+=$")
"""A name whose value is still missing."""
_VALUE = re.compile(r"(?:^|[\s;,])\w+=[^\s;=]+$")
_ERROR = re.compile(r"^(?:\w+\.)*[A-Z]\w*$")
_NO_VALUE = re.compile(r"\s*(?:\w+=|Traceback \(most recent call last\):)")
_MOST_CHARACTERS = 200  # of a line's end that are searched
_MOST_MILLISECONDS = 2_000
"""Maximum time between two pieces, since a platform can receive them in different batches."""


def whole_lines(lines: Iterable[LogLine], processes_per_node: int) -> Iterator[LogLine]:
    """Yield log lines, with the pieces of `name=value;` and of an exception's message joined.

    `name=value;` is only joined if a single process writes to a node's log. Otherwise, a value
    could be that of another process's name.
    """
    begun: dict[str, LogLine] = {}
    for line in lines:
        begin = begun.pop(line.host, None)
        if begin is not None and _continues(begin, line, processes_per_node):
            line = begin._replace(text=begin.text + line.text)
        elif begin is not None:
            yield begin
        end = line.text[-_MOST_CHARACTERS:]
        if any(pattern.search(end) for pattern in (_NAME, _VALUE, _ERROR)):
            begun[line.host] = line
        else:
            yield line
    yield from begun.values()


def _continues(begin: LogLine, line: LogLine, processes_per_node: int) -> bool:
    if line.unix_milliseconds - begin.unix_milliseconds > _MOST_MILLISECONDS:
        return False
    end = begin.text[-_MOST_CHARACTERS:]
    if _ERROR.search(end):
        return line.text.startswith(":")
    if processes_per_node > 1:
        return False
    return line.text.startswith(";") or (bool(_NAME.search(end)) and _can_be_value(line.text))


def _can_be_value(text: str) -> bool:
    """Return False for another `name=value`, a line of a logger or a rank, and an exception.

    A program can print an empty value, such as that of a checkpoint that it does not have.
    """
    if _NO_VALUE.match(text) or ERROR_LINE.match(text):
        return False
    plain = plain_lines(text)[0].text
    return plain == without_colours(text) or not plain  # a level or a time alone can be a value
