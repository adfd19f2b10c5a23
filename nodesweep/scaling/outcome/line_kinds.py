"""Separate the lines that a program logs from those of the software around it.

`nodesweep run` shows the program's lines and writes the others only to its own log. The formats
were taken from sagemaker-training 5.1.4 (logging_config.py, modules.py) and pip 24 to 25.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nodesweep.scaling.outcome.launcher_lines import is_of_race
from nodesweep.scaling.outcome.plain_lines import plain_lines

LineKind = Literal["program", "toolkit", "platform", "repeat"]
MAX_TEXTS_REMEMBERED = 5000
"""Number of lines remembered per job to find repeats, which ranks write within seconds."""
TRACEBACK_LINES = 200
"""Number of lines that never count as repeats after the first line of a node's traceback."""
MAX_LINE_CHARACTERS = 1000
"""Number of characters at the start of a line that are searched for a step."""
_TOOLKIT = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    r" (?:sagemaker-training-toolkit|sagemaker-containers|sagemaker_\w+_container(?:\.\w+)*)"
    r" +(?P<level>[A-Z]+) +(?P<said>.*)"
)
_INVOKES, _INSTALLS = "Invoking user script", "Installing dependencies"
_COMMAND_FOLLOWS = "Invoking script with the following command:"
# The environment dump: two headings, the training environment as indented JSON, and NAME=value
# lines.
_DUMPED = re.compile(
    r"Training Env:|Environment variables:"
    r'|\s*[{}\[\]]{1,2},?|\s*"[^"]*"(?:: ?.+)?,?|\s*-?[\d.]+,?|\s*(?:true|false|null),?'
    r"|(?:SM_[\w.-]+|PYTHONPATH|[A-Z][A-Z0-9_]*)=.*"
)
_PIP = re.compile(
    r"\s*(?:Looking in (?:indexes|links)|Collecting |Downloading |Using cached |Obtaining "
    r"|Processing |Requirement already satisfied|Installing (?:collected|build) |Preparing metadata"
    r"|Getting requirements to build|Building wheels? for |Created wheel for |Stored in directory"
    r"|Successfully (?:built|installed|uninstalled) |Attempting uninstall|Found existing installa"
    r"|Uninstalling |\[notice\] |[━╸╺ ]*[━╸╺]{3}|WARNING: Running pip as the 'root' user)"
)
_PLATFORM = re.compile(r"\[platform\] (?:boot took \d|\d+\.\d s of CPU in )")
_TRACEBACK = "Traceback (most recent call last):"
# step=12; or "Step: 12/300"; nodesweep/scaling/planning/fail_fast.py recognizes a first step the
# same way
_STEP = re.compile(
    r"\bstep\b\s*(?:[=:]\s*)?(?P<step>\d{1,12})(?![.,]?\d)"
    r"(?:\s*/\s*(?P<of>\d{1,12})(?![.,]?\d))?",
    re.IGNORECASE,
)


class Step(NamedTuple):
    """The step that a line reports, and the total number of steps or None."""

    step: int
    of: int | None


def step_of(line: str) -> Step | None:
    """Return the optimizer step that a program's line reports, or None.

    If the line has several states of a progress bar, the last one counts.
    """
    for part in reversed(plain_lines(line)):
        if found := _STEP.search(part.unmarked[:MAX_LINE_CHARACTERS]):
            return Step(int(found["step"]), int(found["of"]) if found["of"] else None)
    return None


@dataclass
class _Node:
    within: Literal["", "dump", "command", "pip"] = ""
    traceback_lines: int = 0
    is_in_race: bool = False


@dataclass
class LineKinds:
    """A classifier for the log lines of all nodes of one job, in the order in which they arrive.

    Lines are classified without knowing what follows, so a line counts as the program's unless it
    certainly is one of these:

    - toolkit: DEBUG and INFO lines with the prefix of the SageMaker training toolkit or its
      container library; the environment dump from "Invoking user script" to the command of the
      launcher; the output of pip from "Installing dependencies" to the next line of the toolkit.
      Both the position and the form of a line must match, so the first line of a different form
      ends the dump. Messages of torchrun's agents about a store that closed with a different agent
      are toolkit lines too (nodesweep/scaling/outcome/launcher_lines.py).
    - platform: the messages of the local platform on the CPU quota of a node ("[platform] boot
      took").
    - repeat: a line that a different node, or a different marked rank, has already written at least
      as many times. Lines of a traceback are never repeats.
    """

    _nodes: dict[str, _Node] = field(default_factory=dict)
    _said: OrderedDict[str, Counter[str]] = field(default_factory=OrderedDict)

    def sort(self, host: str, line: str) -> LineKind:
        """Return the kind of a line from `host`, such as algo-1."""
        node = self._nodes.setdefault(host, _Node())
        node.is_in_race = is_of_race(line, node.is_in_race)
        if node.is_in_race or _is_toolkits(node, line):
            return "toolkit"
        if _PLATFORM.match(line):
            return "platform"
        if _TRACEBACK in line:
            node.traceback_lines = TRACEBACK_LINES
        parts = plain_lines(line)
        speaker = f"{host} {parts[-1].speaker}"
        text = "\r".join(part.unmarked for part in parts).strip()
        is_repeat = self._was_logged(speaker, text)
        if node.traceback_lines > 0:
            node.traceback_lines -= 1
            return "program"
        return "repeat" if is_repeat and text else "program"

    def _was_logged(self, speaker: str, text: str) -> bool:
        """Return True if a different process has already written the text at least as often."""
        times = self._said.setdefault(text, Counter())
        times[speaker] += 1
        if len(self._said) > MAX_TEXTS_REMEMBERED:
            self._said.popitem(last=False)
        return any(count >= times[speaker] for other, count in times.items() if other != speaker)


def _is_toolkits(node: _Node, line: str) -> bool:
    found = _TOOLKIT.match(line)
    if found is not None:
        said = found["said"]
        node.within = (
            "dump" if said.startswith(_INVOKES) else "pip" if said.startswith(_INSTALLS) else ""
        )
        return found["level"] in ("DEBUG", "INFO")
    if node.within == "":
        return False
    if not line.strip():
        return True
    if node.within == "command":
        node.within = ""
        return _TRACEBACK not in line
    if node.within == "dump" and line.startswith(_COMMAND_FOLLOWS):
        node.within = "command"
        return True
    form = _DUMPED.fullmatch(line) if node.within == "dump" else _PIP.match(line)
    if form is None and node.within == "dump":
        node.within = ""
    return form is not None
