"""Which node of a failed job failed first, and whether it lacked memory,
as far as reason and logs tell.

FailureReason names the node sometimes only. A node that fails takes the others with it: they lose
their connection and fail too, so what comes first counts, and a lost connection names nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nodesweep.scaling.outcome.fault_dump import find_dumps
from nodesweep.scaling.outcome.plain_lines import without_colours
from nodesweep.scaling.outcome.program_error import (
    CONSEQUENCE,
    ProgramError,
    find_program_error,
    launcher_error,
)
from nodesweep.scaling.outcome.program_log import ProgramLog, find_program_lines

MAX_LINES = 20
"""Kept of the failed node's log, and as many of the others' together."""
# "AlgorithmError: algo-2: …"; further in, a reason may name the peer that was lost.
_BLAMED = re.compile(r"(?:\w+: )?(?P<host>algo-[1-9]\d*)\b")
_LINE = re.compile(r"(?P<host>algo-[1-9]\d*): (?P<text>.*)", re.DOTALL)
_FAILURE = re.compile(
    r"\b\w*(?:Error|Exception)\b(?!\s*[=:]\s*[-+.\d])|\bkilled\b|segmentation fault|core dumped|out"
    r" of memory"
    r"|\bexit code:? -?[1-9]|\bsig(?:kill|segv|bus|fpe|ill)\b",
    re.IGNORECASE,
)
Memory = Literal["accelerator", "main", "killed"]
"""What ran out: an accelerator's memory, a node's main memory, or perhaps that one: a process was
killed by SIGKILL, which the kernel sends where main memory runs out, and others send for other
reasons.
"""
# What PyTorch, NumPy, C++ and the launchers say; the plainest first.
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
# Once a node has failed, the platform on this machine ends the others, and says so in their logs.
_PLATFORM = re.compile(r"(?:algo-[1-9]\d*: )?\[platform\] ")
_SAID_CHARACTERS = 200


class MemoryShortage(NamedTuple):
    """What ran out, and the words that say so."""

    memory: Memory
    said: str


class _Line(NamedTuple):
    """A line of a job's log, taken apart: its node
    (None: no node is named) and what that node said.
    """

    host: str | None
    text: str
    line: str


@dataclass(frozen=True)
class FailureLog:
    """The last log lines of a job that did not complete;
    `host` is the node that failed first, None: not known.

    They are the program's, where a node's program wrote any, else whatever its log ends with.
    `rank` is the one that torchrun says failed first. `error` is read from all that the program
    wrote, since the frame of the user's code may lie far above a traceback's end.
    """

    host: str | None
    lines: tuple[str, ...]
    other_lines: tuple[str, ...]
    rank: int | None = None
    error: ProgramError | None = None


def read_failure(reason: str | None, log: Sequence[str], failed: bool = True) -> FailureLog:
    """Split a job's log ("algo-N: text" in time order) into the failed node's last lines
    and the others'.

    The node is the one that `reason` begins with, else the one with the first line that tells of a
    failure of its own. Where it is not known, or the job did not fail but was stopped, the lines
    stay together. What the SageMaker toolkit and torchrun say around the program's own lines is
    left out (nodesweep/scaling/outcome/program_log.py).
    """
    lines = _with_whole_dumps([_parsed(line) for line in log])
    at: dict[str | None, list[int]] = {}  # node -> where its lines are in the log
    for index, line in enumerate(lines):
        at.setdefault(line.host, []).append(index)
    program = {
        host: find_program_lines([lines[index].text for index in own]) for host, own in at.items()
    }
    kept = {at[host][own_index] for host, found in program.items() for own_index in found.indices}
    written = [line for index, line in enumerate(lines) if index in kept]
    host = (_blamed(reason) or _first_to_fail(written) or _first_to_fail(lines)) if failed else None
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
        None if launchers else reason,  # mpirun's own codes, 132 or 135, are no signals
        found.failed_rank,
        found.exit_code,
        found.program,
    )
    if failed and error is None and launchers:
        _, node, text = max(launchers)
        error = launcher_error(text)
        own.append(_Line(node, text, text if node is None else f"{node}: {text}"))
    return FailureLog(
        host,
        _last(own or [line for line in lines if host in (None, line.host)]),
        _last(_of_others(written, host) or _of_others(lines, host)),
        found.failed_rank,
        error if failed else None,
    )


def _with_whole_dumps(lines: list[_Line]) -> list[_Line]:
    """The lines, those of the fault handler's dumps made whole; a dump stands where it began."""
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


def _last(lines: Sequence[_Line]) -> tuple[str, ...]:
    return tuple(line.line for line in lines[-MAX_LINES:])


def _of_others(lines: Sequence[_Line], host: str | None) -> list[_Line]:
    """The lines of the other nodes; none where the node is not known."""
    return [line for line in lines if host not in (None, line.host)]


def _first_to_fail(lines: Sequence[_Line]) -> str | None:
    """The node with the first line that tells of a failure of its own, not of a lost connection."""
    told = (
        line for line in lines if _FAILURE.search(line.text) and not CONSEQUENCE.search(line.text)
    )
    return next((line.host for line in told if line.host is not None), None)


def name_host(reason: str | None, host: str | None) -> str | None:
    """The reason with the node in it, at its end, where it does not begin with one."""
    if host is None or _blamed(reason) is not None:
        return reason
    said = f"{host} failed first, by its log"
    return f"{reason} ({said})" if reason else said


def _blamed(reason: str | None) -> str | None:
    match = _BLAMED.match(reason or "")
    return match["host"] if match else None


def memory_that_ran_out(reason: str | None, log: Sequence[str]) -> MemoryShortage | None:
    """Whether a failed job lacked memory, by its reason and its log; None where neither says so."""
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
