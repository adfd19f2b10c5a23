"""Find the node of a failed job that failed first, and whether it ran out of memory.

FailureReason does not always name the node. When a node fails, the others lose their connection and
fail too, so the first failure counts and lost connections do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nodesweep.scaling.outcome.fault_dump import find_dumps
from nodesweep.scaling.outcome.line_kinds import step_of
from nodesweep.scaling.outcome.plain_lines import plain_lines, without_colours
from nodesweep.scaling.outcome.program_error import (
    CONSEQUENCE,
    ProgramError,
    find_program_error,
    last_words,
    launcher_error,
    own_error_at,
)
from nodesweep.scaling.outcome.program_log import ProgramLog, find_program_lines, host_of_rank

MAX_LINES = 20
"""Number of lines kept from the log of the failed node, and from all other logs together."""
# "AlgorithmError: algo-2: …". Node names later in a reason can be of a peer that was lost.
_BLAMED = re.compile(r"(?:\w+: )?(?P<host>algo-[1-9]\d*)\b")
_LINE = re.compile(r"(?P<host>algo-[1-9]\d*): (?P<text>.*)", re.DOTALL)
_FAILURE = re.compile(
    r"\b\w+(?:Error|Exception)\b(?!\s*[=:]\s*[-+.\d])"
    r"|\b(?:ERROR|CRITICAL|FATAL)\b(?!\s*[=:]?\s*[-+.\d])"
    r"|\bterminate called after throwing\b|(?i:\bkilled\b|segmentation fault|core dumped"
    r"|out of memory|\bexit code:? -?[1-9]|\bsig(?:kill|segv|bus|fpe|ill)\b)"
)
_WARNING = re.compile(r"\b\w*Warning: ")
Memory = Literal["accelerator", "main", "killed"]
"""The memory that ran out: accelerator memory, main memory, or possibly main memory ("killed").

"killed" means that a process got SIGKILL. The kernel sends it when main memory runs out, but it can
have other causes.
"""
# Messages of PyTorch, NumPy, C++ and the launchers, the least ambiguous first.
_SHORTAGES: tuple[tuple[Memory, re.Pattern[str]], ...] = (
    (
        "accelerator",
        re.compile(
            r"CUDA out of memory|CUDA error: out of"
            r" memory|(?:cuda|torch)\.OutOfMemoryError|\w+_STATUS_ALLOC_FAILED"
        ),
    ),
    (
        "main",
        re.compile(
            r"DefaultCPUAllocator: (?:can't allocate|not enough)"
            r" memory|MemoryError\b|std::bad_alloc"
            r"|cannot allocate memory|DataLoader worker.* killed by signal: (?:Killed|Bus"
            r" error)|\boom-?kill",
            re.IGNORECASE,
        ),
    ),
    (
        "killed",
        re.compile(r"\bexit ?code\W{1,5}(?:137|-9)\b|\bsignal 9\b|\bSIGKILL\b", re.IGNORECASE),
    ),
)
# The local platform stops the other nodes of a failed job, and reports that in their logs.
_PLATFORM = re.compile(r"(?:algo-[1-9]\d*: )?\[platform\] ")
# nodesweep_exchange.py writes it before the program starts; its errors are not the program's.
_NOT_TIMED = "nodesweep: all-reduces were not timed: "
# The toolkit reports this for a program that is not Python, such as a shell script.
_NO_MESSAGE = 'ErrorMessage ""'
_SAID_CHARACTERS = 200


class MemoryShortage(NamedTuple):
    """The memory that ran out, and the message that reports it."""

    memory: Memory
    said: str


class _Line(NamedTuple):
    """A parsed log line: its node or None, the text that the node wrote, and the whole line."""

    host: str | None
    text: str
    line: str


@dataclass(frozen=True)
class FailureLog:
    """The last log lines of a job that did not complete.

    Attributes:
        host: the node that failed first; None if unknown.
        lines: the last lines of that node's program, or of its log if the program wrote nothing.
            The log of a node with mpirun or pdsh has the lines of all nodes' programs.
        other_lines: the last lines of the other nodes.
        rank: the rank that failed first, according to the launcher; None if unknown.
        error: the error of the program; all of its lines are searched, because the frame in the
            user's code can be far above the end of a traceback.
    """

    host: str | None
    lines: tuple[str, ...]
    other_lines: tuple[str, ...]
    rank: int | None = None
    error: ProgramError | None = None


def read_failure(
    reason: str | None,
    log: Sequence[str],
    failed: bool = True,
    nodes: int | None = None,
    processes_per_node: int | None = None,
) -> FailureLog:
    """Return the last log lines of the failed node and of the other nodes.

    The failed node is the node that `reason` begins with or, if it begins with none, the first node
    that logs a failure of its own. If it is unknown, or if the job was stopped, the lines are not
    split. Lines of the SageMaker toolkit and of torchrun are left out
    (nodesweep/scaling/outcome/program_log.py), and so is a failure to time all-reduces. In the log
    of mpirun or pdsh, the marks of the lines or the ranks identify the failed node.

    Args:
        reason: The job's FailureReason.
        log: The log lines of all nodes, "algo-N: text", in time order.
        failed: True if the job failed, False if it was stopped.
        nodes: The number of nodes of the job; None if unknown.
        processes_per_node: The number of ranks per node; None or 0 if unknown.
    """
    lines = _with_whole_dumps([_parsed(line) for line in log if _NOT_TIMED not in line])
    at: dict[str | None, list[int]] = {}  # node -> indices of its lines
    for index, line in enumerate(lines):
        at.setdefault(line.host, []).append(index)
    program = {
        host: find_program_lines([lines[index].text for index in own]) for host, own in at.items()
    }
    kept = {at[host][own_index] for host, found in program.items() for own_index in found.indices}
    written = [line for index, line in enumerate(lines) if index in kept]
    host = None
    if failed:
        host = _blamed(reason) or _first_to_fail(written) or _first_to_fail(lines)
        host = host or _only_reporting(program)
    own = [line for line in written if host in (None, line.host)]
    hosts = [host] if host in program else list(program)
    blamed = [program[each] for each in hosts if program[each].failed_rank is not None]
    found = program.get(host) or (
        blamed[0] if len(blamed) == 1 else program[hosts[0]] if len(hosts) == 1 else ProgramLog(())
    )
    launchers = [
        (at[each][met[0]], each, met[1]) for each in hosts if (met := program[each].launcher_error)
    ]
    error = find_program_error(
        [line.text for line in own],
        None if launchers else reason,  # mpirun's own exit codes, 132 and 135, are not signals
        found.failed_rank,
        found.exit_code,
        found.program,
    )
    if failed and error is None and launchers:
        _, node, text = max(launchers)
        error = launcher_error(text)
        own.append(_Line(node, text, text if node is None else f"{node}: {text}"))
    if error is None and own and _NO_MESSAGE in (reason or ""):
        error = last_words(own[-1].text)
    node = host
    if host is not None and nodes != 1 and not launchers:
        node = _marked_node(host, own, found, nodes, processes_per_node)
    return FailureLog(
        node,
        _last_lines(own or [line for line in lines if host in (None, line.host)]),
        _last_lines(_of_others(written, host) or _of_others(lines, host)),
        found.failed_rank,
        error if failed else None,
    )


def _with_whole_dumps(lines: list[_Line]) -> list[_Line]:
    """Return the lines, with the dumps of Python's fault handler reassembled."""
    at: dict[str | None, list[int]] = {}
    for index, line in enumerate(lines):
        at.setdefault(line.host, []).append(index)
    whole: dict[int, list[_Line]] = {}
    for host, own in at.items():
        mark = "" if host is None else f"{host}: "
        for dump in find_dumps([lines[index].text for index in own]):
            whole |= {index: [] for index in own[dump.begin : dump.end]}
            whole[own[dump.begin]] = [_Line(host, text, f"{mark}{text}") for text in dump.lines]
    return [each for index, line in enumerate(lines) for each in whole.get(index, [line])]


def _parsed(line: str) -> _Line:
    line = without_colours(line)
    match = _LINE.match(line)
    return _Line(match["host"], match["text"], line) if match else _Line(None, line, line)


def _last_lines(lines: Sequence[_Line]) -> tuple[str, ...]:
    return tuple(line.line for line in lines[-MAX_LINES:])


def _of_others(lines: Sequence[_Line], host: str | None) -> list[_Line]:
    return [line for line in lines if host not in (None, line.host)]


def _first_to_fail(lines: Sequence[_Line]) -> str | None:
    """Return the node whose program failed first, or that first reported a different failure.

    Lost connections and warnings do not count, and an error after which the node reported a step
    only if there is no other.
    """
    named = [line for line in lines if line.host is not None]
    ends = []
    for host in dict.fromkeys(line.host for line in named):
        own = [index for index, line in enumerate(named) if line.host == host]
        at = own_error_at([named[index].text for index in own])
        if at is not None:
            went_on = any(step_of(named[index].text) for index in own[at + 1 :])
            ends.append((went_on, own[at]))
    if ends:
        return named[min(ends)[1]].host
    return next((line.host for line in named if _reports_failure(line.text)), None)


def _only_reporting(program: Mapping[str | None, ProgramLog]) -> str | None:
    """Return the node whose launcher reports a failure; None if there is not exactly one."""
    reporting = [
        host
        for host, log in program.items()
        if log.failed_rank is not None or log.launcher_error is not None
    ]
    return reporting[0] if len(reporting) == 1 else None


def _reports_failure(text: str) -> bool:
    part = plain_lines(text)[-1]
    return not part.is_below_error and bool(
        _FAILURE.search(part.unmarked)
        and not CONSEQUENCE.search(part.unmarked)
        and not _WARNING.search(part.unmarked)
    )


def _marked_node(
    host: str,
    lines: Sequence[_Line],
    found: ProgramLog,
    nodes: int | None,
    processes_per_node: int | None,
) -> str | None:
    """Return the node of the rank that failed first, from the log of `host`; None if unknown.

    The log of a node with mpirun or pdsh has the lines of all nodes' ranks.
    """
    at = own_error_at([line.text for line in lines])
    marked = None if at is None else plain_lines(lines[at].text)[-1]
    if marked is not None and marked.host is not None:
        return marked.host
    if not found.is_of_mpirun:
        return host
    rank = found.failed_rank if marked is None or marked.rank is None else marked.rank
    if found.failed_node is not None or rank is None or nodes is None or not processes_per_node:
        return found.failed_node
    return host_of_rank(rank, nodes, processes_per_node)


def name_host(reason: str | None, host: str | None) -> str | None:
    """Return the reason with the failed node appended, unless the reason begins with it."""
    if host is None or _blamed(reason) == host:
        return reason
    said = f"{host} failed first, according to the log"
    return f"{reason} ({said})" if reason else said


def _blamed(reason: str | None) -> str | None:
    match = _BLAMED.match(reason or "")
    return match["host"] if match else None


def memory_that_ran_out(reason: str | None, log: Sequence[str]) -> MemoryShortage | None:
    """Return the memory that a failed job ran out of, by its reason and log; None if it did not."""
    spoken = map(without_colours, [*(reason or "").splitlines(), *log])
    lines = [line for line in spoken if not _PLATFORM.match(line)]
    for memory, words in _SHORTAGES:
        for line in lines:
            if found := words.search(line):
                start = max(
                    0, min(found.start() - _SAID_CHARACTERS // 2, len(line) - _SAID_CHARACTERS)
                )
                end = start + _SAID_CHARACTERS
                said = "…" * (start > 0) + line[start:end] + "…" * (end < len(line))
                return MemoryShortage(memory, said.strip().removesuffix("."))
    return None
