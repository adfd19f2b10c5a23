"""Find the exceptions in Python's tracebacks, whatever their classes are called.

An exception that Python ignores, usually while it shuts down, does not end the program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nodesweep.scaling.outcome.plain_lines import PlainLine

_SUFFIXES = ("Error", "Exception", "Interrupt", "Exit")
_NUMBER = r"[-+]?\.?\d"
ERROR_LINE = re.compile(
    rf"(?:[A-Za-z_][\w.]*\.)?_*[A-Z]\w*(?:{'|'.join(_SUFFIXES)})"
    r"(?::(?!\s*[-+]?\d*\.\d+(?:[eE][-+]?\d+)?%?\s*$)|$)"  # "MeanSquaredError: 0.31" is a metric
    rf"|(?:[^:]{{1,80}}: error|Error): (?!\s*{_NUMBER})"
    r"|\[[\w.-]+:\d+\] \*\*\* MPI_ERR_\w+: "  # from Open MPI's library
)
"""Matches an error without a traceback."""
FRAME = re.compile(
    r'(?:[\s>]*File "(?=[^"]+", line )|│ (?=/[^\s:]+:\d+ in\b))'  # loguru marks one frame by ">"
    r'(?P<path>[^":]+)(?:", line |:)(?P<line>\d+)'
)
"""Matches a frame of Python, or of rich, which typer uses."""
_HEADING = re.compile(r"(?:^|\s)Traceback \(most recent call last\)(?::\s*$| ─)")
_IGNORED_HEADING = re.compile(
    r"Exception ignored (?:in: |.*(?:: <|:\s*$))|Error in atexit\._run_exitfuncs:"
    r"|--- Logging error ---"
)
_THREAD_HEADING = re.compile(r"Exception in thread .*:\s*$")
_CHAINED = re.compile(
    r"During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:"
    r"|Call stack:"  # of a call of a logger
)
_OF_SUBPROCESS = re.compile(r"subprocess\.CalledProcessError: ")
_JOINT = re.compile(rf"{_CHAINED.pattern}|\s*\+[+-]")  # the latter in an exception group
_CALL_STACK_ENDS = "Arguments: "
_GROUP_BAR = re.compile(r"\s*\|(?: |$)")
_RAISED = re.compile(
    r"(?P<module>(?:(?:[^\W\d]\w*|<locals>)\.)*)(?P<name>[^\W\d]\w*)(?::\s+(?P<message>\S.*)|:)?\s*"
)


class Raised(NamedTuple):
    """The lines with an exception, by their indices.

    Attributes:
        errors: the beginning of the traceback of each exception, or of the first one chained to it.
        ignored: the lines about ignored exceptions.
        reports: the exceptions with which a program directly reports that of its subprocess.
    """

    errors: Mapping[int, int]
    ignored: frozenset[int]
    reports: frozenset[int]


@dataclass
class _Process:
    """The tracebacks that a process is writing.

    Attributes:
        headings: tracebacks without a line with their exception so far. There can be several if
            processes without marks write alternately.
        is_open: True below the heading of a traceback, until the first line with an exception.
        ignored: headings of ignored exceptions without a line with their exception so far.
        was_ignored: True if the previous traceback was of an ignored exception.
        has_ended: True if the previous line was an exception, or chains one to it.
        begin: the heading of the traceback, or of the first one chained to it.
        is_below_exception: True if the heading directly follows an exception.
        follows_frame: True if the previous line was a frame.
        doubtful: the line with an exception that only its place shows; None if a line follows it
            that ends the traceback.
        last: the previous line.
    """

    headings: int = 0
    is_open: bool = False
    ignored: int = 0
    was_ignored: bool = False
    has_ended: bool = False
    begin: int = 0
    is_below_exception: bool = False
    follows_frame: bool = False
    doubtful: int | None = None
    last: int = -1


def find_raised(parts: Sequence[PlainLine]) -> Raised:
    """Find the exceptions in the lines of a program, whose processes can write alternately."""
    errors: dict[int, int] = {}
    ignored: set[int] = set()
    reports: set[int] = set()
    processes: dict[str, _Process] = {}
    for index, part in enumerate(parts):
        process = processes.setdefault(part.speaker, _Process())
        text = part.unmarked
        if not text.strip():
            continue
        is_frame = FRAME.match(text) is not None
        if is_frame and process.doubtful is not None:  # that line was not of this traceback
            del errors[process.doubtful]
            process.doubtful = None
            process.is_open, process.headings = True, process.headings + 1
        if not text[0].isspace():
            process.doubtful = None
        if (
            _IGNORED_HEADING.match(text)
            or (process.was_ignored and _CHAINED.match(text))
            or (process.has_ended and _THREAD_HEADING.match(text))  # it lost the main thread
        ):
            process.ignored, process.is_open = process.ignored + 1, False
        elif _HEADING.search(text):
            if not (process.has_ended or text.startswith("Original ")):
                process.begin = index
            process.is_below_exception = process.last in errors
            if process.is_open and process.headings >= process.ignored:
                process.ignored = 0  # the exception of the traceback above is missing
            process.is_open, process.headings = True, process.headings + 1
            process.doubtful = None
        is_ignored = process.ignored > 0
        if is_ignored:
            ignored.add(index)
        is_error = ERROR_LINE.match(part.text) is not None and not part.is_below_error
        is_exception = (is_error and (process.headings > 0 or is_ignored)) or (
            process.is_open and _is_raised(part, process)
        )
        if is_exception:
            if not is_ignored:
                errors[index] = process.begin
                if process.is_below_exception and _OF_SUBPROCESS.match(text):
                    reports.add(index)
                process.doubtful = None if is_error else index
            process.was_ignored = is_ignored
            process.ignored, process.headings = (
                max(0, process.ignored - 1),
                max(0, process.headings - 1),
            )
            process.is_open = process.ignored > 0 and process.headings > 0
        elif text.startswith(_CALL_STACK_ENDS):
            process.ignored = 0
        process.follows_frame = is_frame
        process.has_ended = is_exception or _JOINT.match(text) is not None
        process.last = index
    return Raised(errors, frozenset(ignored), frozenset(reports))


def without_group_bar(part: PlainLine) -> PlainLine:
    """Return the line of an exception group's traceback without the bar in front of it."""
    if bar := _GROUP_BAR.match(part.unmarked):
        text = part.unmarked[bar.end() :]
        return part._replace(text=text, unmarked=text)
    return part


def _is_raised(part: PlainLine, process: _Process) -> bool:
    """Return True if the line can be the exception of an open traceback.

    The toolkit removes the indentation of some lines, so a line of source code can have none.
    """
    found = _RAISED.fullmatch(part.text)
    if found is None or part.text != part.unmarked:
        return False
    name, module, message = found["name"], found["module"], found["message"]
    if message and re.match(_NUMBER, message) and not (module or name.endswith(_SUFFIXES)):
        return False
    return name.lstrip("_")[:1].isupper() or bool(module and not process.follows_frame)
