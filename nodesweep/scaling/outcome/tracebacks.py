"""Find the exceptions in Python's tracebacks, whatever their classes are called.

An exception that Python ignores, usually while it shuts down, does not end the program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


def find_raised(parts: Sequence[PlainLine]) -> Raised:
    """Find the exceptions in the lines of a program, whose processes can write alternately."""
    processes: dict[str, _Process] = {}
    for index, part in enumerate(parts):
        if part.unmarked.strip():
            processes.setdefault(part.speaker, _Process()).read(index, part)
    errors: dict[int, int] = {}
    for process in processes.values():
        errors |= process.errors
    return Raised(
        errors,
        frozenset(index for process in processes.values() for index in process.ignored),
        frozenset(index for process in processes.values() for index in process.reports),
    )


def without_group_bar(part: PlainLine) -> PlainLine:
    """Return the line of an exception group's traceback without the bar in front of it."""
    if bar := _GROUP_BAR.match(part.unmarked):
        text = part.unmarked[bar.end() :]
        return part._replace(text=text, unmarked=text)
    return part


@dataclass
class _Process:
    """The tracebacks of a process. See Raised for `errors`, `ignored` and `reports`.

    Attributes:
        headings: tracebacks without a line with their exception so far. There can be several if
            processes without marks write alternately.
        ignored_headings: those of ignored exceptions without a line with their exception so far.
        is_open: True below the heading of a traceback, until the first line with an exception.
        was_ignored: True if the previous traceback was of an ignored exception.
        has_ended: True if the previous line was an exception, or chains one to it.
        begin: the heading of the traceback, or of the first one chained to it.
        is_below_exception: True if the heading directly follows an exception.
        follows_frame: True if the previous line was a frame.
        doubtful: the line with an exception that only its place shows; None if a line follows it
            that ends the traceback.
        last: the previous line.
    """

    errors: dict[int, int] = field(default_factory=dict)
    ignored: set[int] = field(default_factory=set)
    reports: set[int] = field(default_factory=set)
    headings: int = 0
    ignored_headings: int = 0
    is_open: bool = False
    was_ignored: bool = False
    has_ended: bool = False
    begin: int = 0
    is_below_exception: bool = False
    follows_frame: bool = False
    doubtful: int | None = None
    last: int = -1

    def read(self, index: int, part: PlainLine) -> None:
        """Read the next line of the process, which is not blank."""
        text = part.unmarked
        is_frame = FRAME.match(text) is not None
        if is_frame and self.doubtful is not None:  # that line was not of this traceback
            del self.errors[self.doubtful]
            self.is_open, self.headings = True, self.headings + 1
        if is_frame or not text[0].isspace():
            self.doubtful = None
        if self._is_ignored_heading(text):
            self.ignored_headings, self.is_open = self.ignored_headings + 1, False
        elif _HEADING.search(text):
            self._begin(index, text)
        if self.ignored_headings:
            self.ignored.add(index)
        is_exception = self._is_exception(part)
        if is_exception:
            self._end(index, part)
        elif text.startswith(_CALL_STACK_ENDS):
            self.ignored_headings = 0
        self.follows_frame, self.last = is_frame, index
        self.has_ended = is_exception or _JOINT.match(text) is not None

    def _is_ignored_heading(self, text: str) -> bool:
        """Return True if the exception that follows does not end the program."""
        chains = _CHAINED if self.was_ignored else None
        ends_thread = _THREAD_HEADING if self.has_ended else None  # it lost the main thread
        headings = (_IGNORED_HEADING, chains, ends_thread)
        return any(heading is not None and heading.match(text) for heading in headings)

    def _begin(self, index: int, text: str) -> None:
        if not (self.has_ended or text.startswith("Original ")):
            self.begin = index
        self.is_below_exception = self.last in self.errors
        if self.is_open and self.headings >= self.ignored_headings:
            self.ignored_headings = 0  # the exception of the traceback above is missing
        self.is_open, self.headings, self.doubtful = True, self.headings + 1, None

    def _end(self, index: int, part: PlainLine) -> None:
        self.was_ignored = self.ignored_headings > 0
        if not self.was_ignored:
            self.errors[index] = self.begin
            self.doubtful = None if is_error(part) else index
            if self.is_below_exception and _OF_SUBPROCESS.match(part.text):
                self.reports.add(index)
        self.headings = max(0, self.headings - 1)
        self.ignored_headings = max(0, self.ignored_headings - 1)
        self.is_open = self.headings > 0 and self.ignored_headings > 0

    def _is_exception(self, part: PlainLine) -> bool:
        """Return True if the line can be the exception of a traceback.

        The toolkit removes the indentation of some lines, so a line of source code can have none.
        """
        if is_error(part):
            return self.headings > 0 or self.ignored_headings > 0
        found = _RAISED.fullmatch(part.text) if self.is_open else None
        if found is None or part.text != part.unmarked:
            return False
        name, module, message = found["name"], found["module"], found["message"]
        if message and re.match(_NUMBER, message) and not (module or name.endswith(_SUFFIXES)):
            return False
        return name.lstrip("_")[:1].isupper() or bool(module and not self.follows_frame)


def is_error(part: PlainLine) -> bool:
    """Return True if the line is an error even without a traceback."""
    return ERROR_LINE.match(part.text) is not None and not part.is_below_error
