"""Find the error of a failed program: its message, its place in the user's code, and a remedy.

Two failures have the same cause if their messages are equal apart from numbers and node names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile, islice, takewhile
from typing import NamedTuple

from pydantic import ConfigDict, Field

from nodesweep.scaling.outcome.plain_lines import PlainLine, plain_lines
from nodesweep.scaling.outcome.tracebacks import (
    FRAME,
    Raised,
    find_raised,
    is_error,
    without_group_bar,
)
from nodesweep.scaling.report_part import Part

CONSEQUENCE = re.compile(
    r"connection (?:closed|reset|refused|lost|aborted)|broken pipe|socket time(?:out|d out)|failed"
    r" to recv|read timeout"
    r"|recvvalue\w* failed|remote process exited|ncclRemoteError|ncclSystemError|timed out"
    r" waiting|pair closure|sigterm"
    r"|Dist(?:Network|Store)Error(?!.*(?:EADDRINUSE|address already in use))"
    r"|BrokenPipeError|Connection\w*Error|ChildFailedError",
    re.IGNORECASE,
)
"""Messages of gloo, NCCL, torch's TCP store and torchrun when the peer is gone."""
CHILD_FAILED = "ChildFailedError"
"""The error with which torchrun reports that its program failed."""
_NOT_THE_USERS = (
    "site-packages/",
    "dist-packages/",
    "/lib/python",
    "<",
    "/bin/torchrun",
    "/bin/accelerate",
    "importlib/",
    "/opt/nodesweep/",
    *(
        f"/nodesweep_{name}.py"  # a program can have its own copy of a measuring file
        for name in ("budget", "clock", "exchange", "flops", "laps", "measure", "network", "start")
    ),
)
_CODE = re.compile(r".*/ml/code/")
_PARSER = re.compile(r"(?P<program>[\w.-]+): error: ")
_COLLECTIVE = re.compile(
    r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)"
    r"|collective operation timeout|Application timeout caused pair closure",
    re.IGNORECASE,
)
_COLLECTIVE_ADVICE = (
    "a rank waited in a collective (all_reduce, barrier, …) for a rank that never joined: all "
    "ranks must make the same calls in the same order; look for calls in a branch that only one "
    "rank takes, ranks with fewer batches, and ranks that exited early"
)
_SIGNALS = {
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
_SIGNAL_ADVICE = {
    "SIGKILL": (
        "the kernel kills processes this way when main memory runs out: try a smaller batch, "
        "fewer data-loader processes or a larger instance type"
    ),
    "SIGSEGV": (
        "native code crashed: check that the packages you install match the image's torch and CUDA"
    ),
    "SIGBUS": (
        "a memory-mapped file or the shared memory of the data loader's processes ran out:"
        " use fewer of them"
    ),
}
_FATAL = re.compile(r"Fatal Python error: (?P<how>[\w -]+)")
_FATAL_SIGNALS = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
}
"""Signals by their names in the output of Python's fault handler."""
_CURRENT_THREAD = "Current thread "
_WHAT = re.compile(r"\s*what\(\):\s+(?P<what>.*\S)")
"""The message of C++ for an uncaught exception."""
_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[^']+)'")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"operator torchvision::\w+ does not exist"),
        (
            "this torchvision was compiled for a different torch than the image's: each "
            "torchvision release matches one torch release (0.28 matches 2.13), and a torch "
            "without CUDA needs the wheel from https://download.pytorch.org/whl/cpu. If that "
            "can't be reached, copy examples/lightning_cli/torchvision_on_cpu.py next to the "
            "script and import it before torchvision"
        ),
    ),
    (
        re.compile(r"attempt to run as root"),
        "a job's processes run as root: pass --allow-run-as-root to mpirun",
    ),
    (
        re.compile(r"not enough slots available"),
        (
            "mpirun counts one slot for each host given by --host without :N, otherwise the "
            "node's cores: request fewer processes, list the hosts as algo-1:N, or pass "
            "--oversubscribe"
        ),
    ),
    (
        re.compile(r"unable to launch the specified application|working directory: /"),
        (
            "mpirun starts programs from the image and from training.source_dir, which is "
            "/opt/ml/code in a job; start a script there as ./NAME, which must be executable, "
            "or pass it to python"
        ),
    ),
    (
        re.compile(r"start its daemon|start one or more daemons|failed to report back|plm_rsh"),
        (
            "mpirun reaches other nodes by ssh, under the names in SM_HOSTS, and needs an SSH"
            " server on each: training.distribution: {kind: mpi} starts them and names the nodes"
        ),
    ),
    (
        re.compile(r"Connection (?:closed|reset) by peer|remote process exited", re.IGNORECASE),
        (
            "the rank at the other end of this connection ended first, and this rank wrote no"
            " other error: read the log of the other nodes, and look for a rank that exits early"
        ),
    ),
    (
        re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE),
        (
            "another process on the node already listens on this port: give the launcher "
            "(--master-port) or init_process_group a different one; torchrun on a single node "
            "picks a free one with --standalone"
        ),
    ),
    (
        re.compile(r"(?:FileNotFoundError|NotADirectoryError)\b|No such file or directory"),
        (
            "a job finds its data in the folder that SM_CHANNEL_<NAME> names "
            "(/opt/ml/input/data/<channel>) and its code in /opt/ml/code; paths of your own "
            "machine do not exist there"
        ),
    ),
    (
        re.compile(
            r"error: the following arguments are required|Missing (?:option|argument|parameter)",
            re.IGNORECASE,
        ),
        (
            "set it in training.hyperparameters, under its name without the dashes; a positional "
            "argument can't be set there and needs a wrapper script (docs/own-code.md)"
        ),
    ),
    (
        re.compile(
            r"error: (?:unrecognized arguments|ambiguous option|argument )|No such"
            r" option|unexpected extra argument",
            re.IGNORECASE,
        ),
        (
            "each entry of training.hyperparameters is passed to the program as --name value: "
            "rename or remove it there, or have the program's parser accept it"
        ),
    ),
)
_MEMORY_ADVICE = "memory ran out: the report lists what to try, in order"
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_HOST = re.compile(r"algo-\d+")
_COMMAND = re.compile(r'\s*Command "[\s\S]*')
_SAID_CHARACTERS = 300


class ProgramError(Part):
    """The error with which the program of a run failed, according to its log."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    said: str = Field(
        description=(
            "The last error that the program itself wrote, or the way its process ended; if "
            "neither is known, the error that its launcher reported, or the program's last line."
        )
    )
    where: str | None = Field(
        default=None, description="File and line in your code; null: unknown."
    )
    advice: str | None = Field(
        default=None, description="Remedy for an error of this kind; null: no general advice."
    )

    @property
    def text(self) -> str:
        """The place, the error and the remedy in one line."""
        said = (
            self.said
            if self.where is None or self.said.startswith(self.where)
            else f"{self.where}: {self.said}"
        )
        return f"{said} ({self.advice})" if self.advice else said


def find_program_error(
    lines: Sequence[str],
    reason: str | None = None,
    rank: int | None = None,
    exit_code: int | None = None,
    program: str | None = None,
) -> ProgramError | None:
    """Find the error in the lines of a program.

    This is the last error that the failure of a different rank did not cause, or a signal that
    Python's fault handler caught later. If there is neither, it is the first of these that is
    known: the signal that killed the rank, a collective that timed out, the last error of any kind,
    and the exit code of the rank. If a signal killed the rank and the fault handler wrote nothing,
    only the file that the launcher started is known. SIGKILL also precedes an error after which
    the program wrote more, because a program that an error ends is not killed.

    Args:
        lines: The lines of the program, without the prefix of the node (program_log.py).
        reason: The job's FailureReason.
        rank: The rank that failed first.
        exit_code: The exit code of that rank; a negative code is a signal.
        program: The file that the launcher started.

    Returns:
        The error; None if none is reported.
    """
    log = _read(lines)
    killed_by = _signal(reason, exit_code)
    own, fatal = log.own, log.fatal
    if own is not None and not (fatal is None and killed_by == "SIGKILL" and log.goes_on(own)):
        return log.error_at(own)
    if signal := (fatal.signal if fatal else killed_by):
        who = "a process" if rank is None else f"rank {rank}"
        what = [found["what"] for text in log.texts if (found := _WHAT.match(text))]
        said = ": ".join([f"{who} was killed by {signal}", *what[-1:]])[:_SAID_CHARACTERS]
        where = (fatal.where if fatal else None) or program
        return ProgramError(said=said, where=where, advice=_SIGNAL_ADVICE.get(signal))
    waited = [index for index, text in enumerate(log.texts) if _COLLECTIVE.search(text)]
    if waited:
        return log.error_at(waited[-1], _COLLECTIVE_ADVICE)
    if log.errors:
        return log.error_at(log.errors[-1])
    if rank is not None and exit_code:
        said = f"rank {rank} exited with code {exit_code} and wrote no error"
        return ProgramError(said=said, where=program)
    return None


def own_error_at(lines: Sequence[str]) -> int | None:
    """Return the index of the line with the error of a program, or with the signal that ended it.

    None if there is none, or only those that the failure of a different rank caused.
    """
    log = _read(lines)
    return log.fatal.at if log.own is None and log.fatal is not None else log.own


def launcher_error(line: str) -> ProgramError:
    """Return an error of the launcher itself, with a remedy if there is one."""
    message = plain_lines(line)[-1].text.strip()[:_SAID_CHARACTERS]
    return ProgramError(said=message, advice=_advice(message))


def last_words(line: str) -> ProgramError:
    """Return the last line of a program that reported no error, such as a shell script."""
    text = plain_lines(line)[-1].text.strip()[:_SAID_CHARACTERS]
    return ProgramError(said=f"the program's last line was: {text}", advice=_advice(text))


def failure_cause(reason: str | None, error: ProgramError | None) -> str:
    """Return a text that is equal for failures with the same cause.

    Numbers, node names and the command of the launcher are removed.
    """
    said = f"{error.where or ''} {error.said}" if error else _COMMAND.sub("", reason or "")
    return _NUMBER.sub("#", _HOST.sub("", said)).strip()


class _Log(NamedTuple):
    """The lines of a program, and the indices of those with errors.

    Attributes:
        parts: the lines without marks and prefixes.
        errors: the lines with an error.
        raised: the lines with the exceptions of tracebacks, and about ignored exceptions.
        fatal: the last signal that Python's fault handler reported.
        own: the last error that the failure of a different rank or a subprocess did not cause;
            None if there is none, or if the fault handler reported a signal later.
    """

    parts: Sequence[PlainLine]
    errors: Sequence[int]
    raised: Raised
    fatal: _Fatal | None
    own: int | None

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.parts]

    def goes_on(self, at: int) -> bool:
        """Return True if the program wrote a line after this one."""
        later = range(at + 1, len(self.parts))
        return any(self.parts[i].text.strip() and i not in self.raised.ignored for i in later)

    def error_at(self, at: int, advice: str | None = None) -> ProgramError:
        """Return the error in a line, with the remedy for its kind if none is given."""
        said = self.parts[at].text.strip()[:_SAID_CHARACTERS]
        return ProgramError(said=said, where=self._where(at), advice=advice or _advice(said))

    def _where(self, at: int) -> str | None:
        """Return the last frame of the user's code above the error, from the same process.

        Only the traceback of the error and those chained to it count. For an error of an argument
        parser, return the program that the error names.
        """
        part = self.parts[at]
        for index in range(at - 1, self.raised.errors.get(at, 0) - 1, -1):
            other = self.parts[index]
            if other.speaker != part.speaker or index in self.raised.ignored:
                continue
            if index in self.raised.errors and at not in self.raised.errors:
                break
            frame = FRAME.match(other.text)
            if frame and _is_users(frame["path"]):
                return _place(frame)
        parser = _PARSER.match(part.text)
        return parser["program"] if parser and parser["program"].endswith(".py") else None


def _read(lines: Sequence[str]) -> _Log:
    parts = [without_group_bar(plain_lines(line)[-1]) for line in lines]
    raised = find_raised(parts)
    errors = [
        index
        for index, part in enumerate(parts)
        if index in raised.errors or (is_error(part) and index not in raised.ignored)
    ]
    fatal = _fatal([part.text for part in parts])
    own = [
        index
        for index in errors
        if not CONSEQUENCE.search(parts[index].text)
        and not _COLLECTIVE.search(parts[index].text)
        and index not in raised.reports
        and (fatal is None or index > fatal.at)
    ]
    return _Log(parts, errors, raised, fatal, own[-1] if own else None)


class _Fatal(NamedTuple):
    """A signal that Python's fault handler reported, with its place in the user's code."""

    at: int
    signal: str
    where: str | None


def _fatal(texts: Sequence[str]) -> _Fatal | None:
    """Return the last signal that the fault handler reported, or None."""
    for index in range(len(texts) - 1, -1, -1):
        found = _FATAL.match(texts[index])
        signal = _FATAL_SIGNALS.get(found["how"].strip()) if found else None
        if signal is None:
            continue
        current = dropwhile(lambda text: not text.startswith(_CURRENT_THREAD), texts[index:])
        frames = takewhile(bool, map(FRAME.match, islice(current, 1, None)))
        own = (_place(frame) for frame in frames if frame and _is_users(frame["path"]))
        return _Fatal(index, signal, next(own, None))
    return None


def _is_users(path: str) -> bool:
    return not any(part in path for part in _NOT_THE_USERS)


def _place(frame: re.Match[str]) -> str:
    return f"{_CODE.sub('', frame['path'])}, line {frame['line']}"


def _advice(said: str) -> str | None:
    if found := _MODULE.search(said):
        package = found["name"].partition(".")[0]
        return (
            f"add {package} to requirements.txt in training.source_dir, or to the image; if "
            f"{package} is your own module, its file must be in training.source_dir"
        )
    if re.search(
        r"out of memory|OutOfMemory|MemoryError|can't allocate memory|not enough memory|bad_alloc",
        said,
    ):
        return _MEMORY_ADVICE
    return next((advice for words, advice in _RULES if words.search(said)), None)


def _signal(reason: str | None, exit_code: int | None) -> str | None:
    """Return the signal that killed a process; None if there is no sign of one.

    It is read from the exit code of the launcher (-9) or, if that is unknown, from the reason (-9,
    or 137 from a shell).
    """
    given = re.search(r"\bexit ?code:? (-?\d{1,9})\b", reason or "", re.IGNORECASE)
    code = exit_code if exit_code is not None else int(given[1]) if given else 0
    number = -code if code < 0 else code - 128 if code > 128 else 0
    return _SIGNALS.get(number)
