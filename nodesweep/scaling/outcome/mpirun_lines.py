"""Read mpirun's own messages: why it started nothing, or which process failed first.

Its messages are between two lines of dashes, without the mark that -tag-output puts before the
lines of a rank. The formats were taken from Open MPI 4.1.4 (mpirun, ORTE) and 5.0.11 (prterun,
PRRTE).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RULE = re.compile(r"-{50,}")
_ITS_WORDS = re.compile(
    r"\b(?:mpirun|mpiexec|orterun|prterun|ORTE|PRRTE|MPI_ABORT|MPI_INIT|Open MPI|MCA param)"
    r"|not enough slots available|Primary job +terminated|A daemon failed to report back"
    r"|user-provided time limit for job execution"
)
_FIRST_WORDS = re.compile(r"(?:mpirun|mpiexec|orterun|prterun): Error: |prterun has detected an ")
"""The beginning of a message that has no line of dashes above it."""
_AFTER = re.compile(
    r"\d+ total processes failed to start|Type '\w+ --help' for usage|\[[\w.-]+:\d+\] \[\["
    r"|\[[\w.-]+:\d+\] \d+ more process"
)
_ENDED_BY_RANK = (
    re.compile(r"Process name: \[.*,(?P<rank>\d{1,9})\] +Exit code: +(?P<code>-?\d{1,9})\b"),
    re.compile(
        r"process rank (?P<rank>\d{1,9}) with PID .* exited on signal (?P<signal>\d{1,9})\b"
    ),
    re.compile(
        r"MPI_ABORT was invoked on rank (?P<rank>\d{1,9}) .* errorcode (?P<code>-?\d{1,9})\b"
    ),
    re.compile(r"due to process rank (?P<rank>\d{1,9}) with PID .* exiting improperly"),
)
_ITS_NODE = re.compile(r" on node (?P<node>algo-[1-9]\d*)\b")
_OF_A_RANK = re.compile(r"Primary job +terminated|MPI_INIT failed for some reason")
"""Messages that name no process and do not report a failure of mpirun itself."""
_NO_DAEMON = re.compile(r"start one or more daemons|daemon failed to report back")
_REMOTE_SHELL = re.compile(
    r"ssh: |\S+: .*(?:orted|prted): .*not found|.*Permission denied|Host key"
)
"""Lines with the reason why the daemon of a node did not start, above mpirun's message."""
_PARAGRAPHS = 2


@dataclass(frozen=True)
class MpirunReport:
    """mpirun's own output: the indices of its lines, and the process that failed first.

    A negative `exit_code` is a signal. `node` is the node of the process; None if mpirun does not
    name it. `failure` is a failure of mpirun itself in one line, None if mpirun started the
    processes; `at` is the index of its first line.
    """

    indices: frozenset[int] = frozenset()
    rank: int | None = None
    exit_code: int | None = None
    at: int = 0
    failure: str | None = None
    node: str | None = None


def read_mpirun(lines: Sequence[str]) -> MpirunReport:
    """Find mpirun's own messages in the lines of a node."""
    indices: set[int] = set()
    rank = exit_code = failure = node = None
    at = 0
    for message in _messages(lines):
        indices |= set(message)
        said = " ".join(line for index in message if (line := lines[index].strip()))
        found = next((found for form in _ENDED_BY_RANK if (found := form.search(said))), None)
        if found is not None:
            if rank is None:
                words = found.groupdict()
                rank = int(words["rank"])
                code = words.get("code")
                signal = words.get("signal")
                exit_code = -int(signal) if signal else int(code) if code else None
                node = named["node"] if (named := _ITS_NODE.search(said)) else None
        elif failure is None and not _OF_A_RANK.search(said):
            at, failure = message[0], _in_one_line(lines, message)
    indices |= {
        index for index, line in enumerate(lines) if index - 1 in indices and _AFTER.match(line)
    }
    if rank is not None:
        failure = None
    return MpirunReport(frozenset(indices), rank, exit_code, at, failure, node)


def _messages(lines: Sequence[str]) -> list[range]:
    """Return the line range of each message, including its lines of dashes."""
    found = []
    index = 0
    while index < len(lines):
        line = lines[index].strip()
        begins = _RULE.fullmatch(line)
        end = None
        if begins:
            end = next(
                (at for at in range(index + 1, len(lines)) if _RULE.fullmatch(lines[at].strip())),
                len(lines) - 1,
            )
            if not _ITS_WORDS.search(" ".join(lines[index + 1 : end + 1])):
                end = None
        elif first := _FIRST_WORDS.match(line):
            end = index
            if not first[0].endswith(": "):  # as root, Open MPI 5 writes only the closing line
                rules = (at for at in range(index, len(lines)) if _RULE.fullmatch(lines[at]))
                end = next(rules, index)
        if end is None:
            index += 1
            continue
        found.append(range(index, end + 1))
        index = end + 1
    return found


def _in_one_line(lines: Sequence[str], message: range) -> str:
    """Return the first paragraphs of a message, or the shell's error if a daemon did not start."""
    text = "\n".join(
        line for index in message if not _RULE.fullmatch(line := lines[index].strip())
    ).strip()
    before = lines[message[0] - 1].strip() if message[0] else ""
    if _NO_DAEMON.search(text.replace("\n", " ")) and _REMOTE_SHELL.match(before):
        return f"mpirun could not start its daemon on a node: {before}"
    return " ".join(" ".join(text.split("\n\n")[:_PARAGRAPHS]).split())
