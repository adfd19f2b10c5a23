"""Find the lines of a node's log that its program wrote.

The log also has messages of the toolkit, its dump of the environment with the command of the
launcher, torchrun's failure report (a traceback and a summary), and the failure report of the
toolkit, which repeats parts of the others. Order and indentation are not reliable: the output of
the program (standard output and error in one stream) passes through the toolkit, which can write it
after its own log and strip its lines. The formats were taken from sagemaker-training 5.1.4
(logging_config.py, process.py, trainer.py) and torch 1.13 to 2.13
(torch/distributed/elastic/multiprocessing).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nodesweep.scaling.outcome.launcher_lines import is_of_race
from nodesweep.scaling.outcome.mpirun_lines import read_mpirun
from nodesweep.scaling.outcome.plain_lines import is_of_mpirun, plain_lines, rank_of
from nodesweep.scaling.outcome.program_error import CHILD_FAILED
from nodesweep.scaling.outcome.tracebacks import ERROR_LINE

_INVOKES = "Invoking user script"
_COMMAND_FOLLOWS = "Invoking script with the following command:"
_TOOLKIT = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:sagemaker|botocore|boto3|s3transfer)[\w.-]* +[A-Z]+"
    r" +(?P<said>.*)"
)
_REPORTED, _COMMAND = "ExecuteUserScriptError:", 'Command "'
# "E1122 12:00:00.123456 51 torch/distributed/elastic/multiprocessing/api.py:984] failed …", and the
# form of older versions.
_TORCHRUN_SAYS = re.compile(
    r"(?:\[rank\d+\]:)?(?:[WEI]\d{4} |\[\d{4}-|WARNING:|ERROR:|INFO:).{0,80}"
    r"torch[./]distributed[./](?:run|elastic|launcher)"
    r"|Setting OMP_NUM_THREADS environment variable for each process"
)
_TORCHRUN_FILE = re.compile(
    r' *File "[^"]*(?:/torchrun|torch/distributed/(?:run|launch|launcher/api)\.py)"'
)
_TRACEBACK = "Traceback (most recent call last):"
_RULE = re.compile(r"[=*]{20,}")
_ROOT_CAUSE = "Root Cause"
_SUMMARY_PROGRAM = re.compile(r"\s*(?P<program>\S+\.py) FAILED\s*")
_SUMMARY_RANK = re.compile(r"\s*rank\s*: (?P<rank>\d{1,9})\b")
_SUMMARY_EXIT = re.compile(r"\s*exitcode\s*: (?P<code>-?\d{1,9})\b")


@dataclass(frozen=True)
class ProgramLog:
    """The indices of the lines that a program wrote, and what its launcher reports.

    Attributes:
        indices: the indices of the program's lines.
        launcher_error: (index, line) of an error of torchrun or mpirun itself; None: no error.
        failed_rank: the rank that failed first; None if the launcher reports none.
        exit_code: the exit code of that rank; a negative code is a signal.
        program: the file that torchrun started; None if torchrun does not report it.
        is_of_mpirun: True if mpirun wrote the log, which has the lines of the ranks of all nodes.
        failed_node: the node of that rank according to mpirun; None if mpirun does not name it.
    """

    indices: tuple[int, ...]
    launcher_error: tuple[int, str] | None = None
    failed_rank: int | None = None
    exit_code: int | None = None
    program: str | None = None
    is_of_mpirun: bool = False
    failed_node: str | None = None


def find_program_lines(lines: Sequence[str]) -> ProgramLog:
    """Find the lines of the program in the log of one node, without the prefix of the node.

    If the lines have marks of their ranks, only those of the rank that failed first are kept.
    """
    ranks = [rank_of(line) for line in lines]
    whole, lines = lines, [plain_lines(line)[-1].unmarked for line in lines]
    frame = _torchrun_frame(lines)
    if frame and ranks[frame[0]] is not None:  # mpirun started torchrun, which has its own ranks
        ranks = [None] * len(lines)
    said = [lines[index] for index in frame]
    failed_rank, exit_code = _root_cause(said)
    program = next(
        (found["program"] for line in said if (found := _SUMMARY_PROGRAM.fullmatch(line))), None
    )
    mpirun = read_mpirun(lines)
    if by_mpirun := failed_rank is None:
        failed_rank, exit_code = mpirun.rank, mpirun.exit_code
    left_out = {
        *frame,
        *mpirun.indices,
        *_environment(lines),
        *_report(lines),
        *_race(whole),
    }
    indices = []
    for index, line in enumerate(lines):
        if (
            index in left_out
            or not line.strip()
            or _TOOLKIT.match(line)
            or _TORCHRUN_SAYS.match(line)
        ):
            continue
        if failed_rank is None or ranks[index] in (None, failed_rank):
            indices.append(index)
    own = _torchrun_error(whole, frame)
    if own is None and mpirun.failure is not None:
        own = mpirun.at, mpirun.failure
    return ProgramLog(
        tuple(indices),
        own,
        failed_rank,
        exit_code,
        program,
        bool(mpirun.indices) or any(map(is_of_mpirun, whole)),
        (mpirun.node or _marked_node(whole, failed_rank)) if by_mpirun else None,
    )


def _marked_node(lines: Sequence[str], rank: int | None) -> str | None:
    """Return the node in the marks of a rank's lines; None if unknown."""
    parts = (plain_lines(line)[-1] for line in lines) if rank is not None else ()
    return next((part.host for part in parts if part.rank == rank and part.host), None)


def host_of_rank(rank: int, nodes: int, processes_per_node: int) -> str | None:
    """Return the node that a rank runs on; None if the job has no such rank.

    Ranks are numbered node by node, with the nodes in the order of the toolkit, which sorts their
    names as text: algo-10 comes before algo-2.
    """
    hosts = sorted(f"algo-{number}" for number in range(1, nodes + 1))
    index = rank // processes_per_node
    return hosts[index] if index < nodes else None


def _torchrun_frame(lines: Sequence[str]) -> range:
    """Return the range of torchrun's traceback and failure report; empty without a traceback.

    It ends at the second double rule, which closes the failure report, or at an error of torchrun
    itself. One of the first few frames of the traceback is in a file of torchrun; with "python -m
    torch.distributed.run", the frames of runpy come first.
    """
    for index, line in enumerate(lines):
        if line.strip() == _TRACEBACK and any(
            map(_TORCHRUN_FILE.match, lines[index + 1 : index + 6])
        ):
            rules = [
                later for later in range(index, len(lines)) if _RULE.fullmatch(lines[later].strip())
            ]
            if len(rules) > 1:
                return range(index, rules[1] + 1)
            error = next(
                filter(lambda at: ERROR_LINE.match(lines[at]), range(index, len(lines))), -1
            )
            is_its_own = error >= 0 and CHILD_FAILED not in lines[error]
            return range(index, error + 1 if is_its_own else len(lines))
    return range(0)


def _torchrun_error(lines: Sequence[str], frame: range) -> tuple[int, str] | None:
    """Return the last error of torchrun itself in its traceback, as (index, line); None if none."""
    for index in reversed(frame):
        text = plain_lines(lines[index])[-1].unmarked
        if ERROR_LINE.match(text) and CHILD_FAILED not in text:
            return index, lines[index]
    return None


def _race(lines: Sequence[str]) -> set[int]:
    """Return the indices of the lines about the shutdown race of torchrun's agents.

    `lines` are raw, with the prefixes of the launcher.
    """
    indices: set[int] = set()
    for index, line in enumerate(lines):
        if is_of_race(line, index - 1 in indices):
            indices.add(index)
    return indices


def _environment(lines: Sequence[str]) -> set[int]:
    """Return the line indices of the toolkit's environment dumps, which end with a command.

    The log can begin within the first dump.
    """
    indices: set[int] = set()
    begin = 0
    for index, line in enumerate(lines):
        if _is_toolkit_line(line, _INVOKES):
            begin = index
        elif line.startswith(_COMMAND_FOLLOWS):
            command = next(
                (later for later in range(index + 1, len(lines)) if lines[later].strip()), index
            )
            indices |= set(range(begin, command + 1))
            begin = command + 1
    return indices


def _report(lines: Sequence[str]) -> set[int]:
    """Return the line indices of the toolkit's failure report, which ends with a command."""
    indices: set[int] = set()
    for index, line in enumerate(lines):
        if _is_toolkit_line(line, _REPORTED):
            command = (
                later for later in range(index, len(lines)) if lines[later].startswith(_COMMAND)
            )
            indices |= set(range(index, next(command, index) + 1))
    return indices


def _is_toolkit_line(line: str, words: str) -> bool:
    found = _TOOLKIT.match(line)
    return found is not None and found["said"].startswith(words)


def _root_cause(frame: Sequence[str]) -> tuple[int | None, int | None]:
    """Return (rank, exit code) below "Root Cause (first observed failure)"."""
    begin = next(
        (index for index, line in enumerate(frame) if line.startswith(_ROOT_CAUSE)), len(frame)
    )
    ranks = [int(found["rank"]) for line in frame[begin:] if (found := _SUMMARY_RANK.match(line))]
    codes = [int(found["code"]) for line in frame[begin:] if (found := _SUMMARY_EXIT.match(line))]
    return (ranks[0] if ranks else None), (codes[0] if codes else None)
