"""Which node of a failed job failed first, and whether it lacked memory, as far as reason and logs tell.

FailureReason names the node sometimes only. A node that fails takes the others with it: they lose their
connection and fail too, so what comes first counts, and a lost connection names nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scaling.outcome.program_error import CONSEQUENCE, ProgramError, find_program_error
from scaling.outcome.program_log import find_program_lines

MAX_LINES = 20
"""Kept of the failed node's log, and as many of the others' together."""
# "AlgorithmError: algo-2: …"; further in, a reason may name the peer that was lost.
_BLAMED = re.compile(r"(?:\w+: )?(?P<host>algo-[1-9]\d*)\b")
_LINE = re.compile(r"(?P<host>algo-[1-9]\d*): (?P<text>.*)", re.DOTALL)
_FAILURE = re.compile(
    r"\b\w*(?:Error|Exception)\b(?!\s*[=:]\s*[-+.\d])|\bkilled\b|segmentation fault|core dumped|out of memory"
    r"|\bexit code:? -?[1-9]|\bsig(?:kill|segv|bus|fpe|ill)\b",
    re.IGNORECASE,
)
Memory = Literal["accelerator", "main", "killed"]
"""What ran out: an accelerator's memory, a node's main memory, or perhaps that one: a process was killed by SIGKILL,
which the kernel sends where main memory runs out, and others send for other reasons."""
# What PyTorch, NumPy, C++ and the launchers say; the plainest first.
_SHORTAGES: tuple[tuple[Memory, re.Pattern[str]], ...] = (
    (
        "accelerator",
        re.compile(
            r"CUDA out of memory|CUDA error: out of memory|(?:cuda|torch)\.OutOfMemoryError|\w+_STATUS_ALLOC_FAILED"
        ),
    ),
    (
        "main",
        re.compile(
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|MemoryError\b|std::bad_alloc"
            r"|cannot allocate memory|DataLoader worker.* killed by signal: (?:Killed|Bus error)|\boom-?kill",
            re.IGNORECASE,
        ),
    ),
    (
        "killed",
        re.compile(r"\bexit ?code\W{1,5}(?:137|-9)\b|\bsignal 9\b|\bSIGKILL\b", re.IGNORECASE),
    ),
)
_SAID_CHARACTERS = 200


class MemoryShortage(NamedTuple):
    """What ran out, and the words that say so."""

    memory: Memory
    said: str


@dataclass(frozen=True)
class FailureLog:
    """The last log lines of a job that did not complete; `host` is the node that failed first, None: not known.

    They are the program's, where a node's program wrote any, else whatever its log ends with. `rank` and `exit_code`
    are what torchrun says of the rank that failed first; a negative exit code is a signal's. `error` is read from
    all that the program wrote, since the frame of the user's code may lie far above a traceback's end.
    """

    host: str | None
    lines: tuple[str, ...]
    other_lines: tuple[str, ...]
    rank: int | None = None
    exit_code: int | None = None
    error: ProgramError | None = None


def read_failure(reason: str | None, log: Sequence[str], failed: bool = True) -> FailureLog:
    """Split a job's log ("algo-N: text" in time order) into the failed node's last lines and the others'.

    The node is the one that `reason` begins with, else the one with the first line that tells of a failure of its own.
    Where it is not known, or the job did not fail but was stopped, the lines stay together. What the SageMaker toolkit
    and torchrun say around the program's own lines is left out (scaling/outcome/program_log.py).
    """
    program = {host: find_program_lines([_text(line) for line in lines]) for host, lines in _by_host(log).items()}
    written = _written(log, {host: set(found.places) for host, found in program.items()})
    host = (_blamed(reason) or _first_to_fail(written) or _first_to_fail(log)) if failed else None
    own, others = _split(written, host)
    all_own, all_others = _split(log, host)
    found = program.get(host) or (next(iter(program.values())) if len(program) == 1 else None)
    rank, exit_code, started = (found.failed_rank, found.exit_code, found.program) if found else (None, None, None)
    return FailureLog(
        host,
        tuple((own or all_own)[-MAX_LINES:]),
        tuple((others or all_others)[-MAX_LINES:]),
        rank,
        exit_code,
        find_program_error([_text(line) for line in own], reason, rank, exit_code, started) if failed else None,
    )


def _by_host(log: Sequence[str]) -> dict[str | None, list[str]]:
    nodes: dict[str | None, list[str]] = {}
    for line in log:
        nodes.setdefault(_host(line), []).append(line)
    return nodes


def _written(log: Sequence[str], places: Mapping[str | None, set[int]]) -> list[str]:
    """The lines that the nodes' programs wrote; `places` are those within each node's own log."""
    seen: Counter[str | None] = Counter()
    written = []
    for line in log:
        host = _host(line)
        if seen[host] in places[host]:
            written.append(line)
        seen[host] += 1
    return written


def _split(log: Sequence[str], host: str | None) -> tuple[list[str], list[str]]:
    """(the node's lines, the others'); all of them where the node is not known."""
    own = [line for line in log if host is None or _host(line) == host]
    return own, [line for line in log if host is not None and _host(line) != host]


def name_host(reason: str | None, host: str | None) -> str | None:
    """The reason with the node in it, at its end, where it does not begin with one."""
    if host is None or _blamed(reason) is not None:
        return reason
    said = f"{host} failed first, by its log"
    return f"{reason} ({said})" if reason else said


def _blamed(reason: str | None) -> str | None:
    match = _BLAMED.match(reason or "")
    return match["host"] if match else None


def _host(line: str) -> str | None:
    match = _LINE.match(line)
    return match["host"] if match else None


def _text(line: str) -> str:
    match = _LINE.match(line)
    return match["text"] if match else line


def _first_to_fail(log: Sequence[str]) -> str | None:
    for line in log:
        match = _LINE.match(line)
        if match and _FAILURE.search(match["text"]) and not CONSEQUENCE.search(match["text"]):
            return match["host"]
    return None


def memory_that_ran_out(reason: str | None, log: Sequence[str]) -> MemoryShortage | None:
    """Whether a failed job lacked memory, by its reason and its log; None where neither says so."""
    lines = [*(reason or "").splitlines(), *log]
    for memory, words in _SHORTAGES:
        for line in lines:
            if found := words.search(line):
                start = max(0, min(found.start() - _SAID_CHARACTERS // 2, len(line) - _SAID_CHARACTERS))
                end = start + _SAID_CHARACTERS
                said = "…" * (start > 0) + line[start:end] + "…" * (end < len(line))
                return MemoryShortage(memory, said.strip().removesuffix("."))
    return None
