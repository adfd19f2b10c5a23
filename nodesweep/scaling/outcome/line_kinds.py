"""Classify the lines of a running job's log as the program's or the surrounding software's.

`nodesweep run` shows the program's lines and keeps the others in the run's log. The formats are
those of sagemaker-training 5.1.4 (logging_config.py, modules.py) and pip 24 to 25.
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
"""Number of lines remembered per job to find repeats; ranks repeat a line within seconds."""
TRACEBACK_LINES = 200
"""Number of lines after a traceback's first line, per node, that never count as repeats."""
MAX_LINE_CHARACTERS = 1000
"""Number of characters of a line that are searched for a step."""
_TOOLKIT = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    r" (?:sagemaker-training-toolkit|sagemaker-containers|sagemaker_\w+_container(?:\.\w+)*)"
    r" +(?P<level>[A-Z]+) +(?P<said>.*)"
)
_INVOKES, _INSTALLS = "Invoking user script", "Installing dependencies"
_COMMAND_FOLLOWS = "Invoking script with the following command:"
# The dump: two headings, the training environment as indented JSON, and NAME=value lines.
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
    """The step in a line and the total number of steps, None if the line has no total."""

    step: int
    of: int | None


def step_of(line: str) -> Step | None:
    """Return the optimizer step in a program's line, or None.

    Of several states of a progress bar, the last one counts.
    """
    for part in reversed(plain_lines(line)):
        if found := _STEP.search(part.unmarked[:MAX_LINE_CHARACTERS]):
            return Step(int(found["step"]), int(found["of"]) if found["of"] else None)
    return None


@dataclass
class _Node:
    """The state of reading one node's log."""

    within: Literal["", "dump", "command", "pip"] = ""
    traceback_lines: int = 0
    is_in_race: bool = False


@dataclass
class LineKinds:
    """A classifier for the log lines of all nodes of one job, in the order in which they arrive.

    Later lines are not known yet, so in doubt a line counts as the program's. Only these do not:

    - toolkit: DEBUG and INFO lines with the prefix of the SageMaker training toolkit or its
      container library; the environment dump after "Invoking user script", up to and including the
      launcher's command; pip's output after "Installing dependencies", up to the toolkit's next
      line. Each is recognized by form and place, never by place alone: the first line of a
      different form ends the dump. Also the messages of torchrun's agents about a store that ended
      with another agent (nodesweep/scaling/outcome/launcher_lines.py).
    - platform: the local platform's messages on a node's CPU quota ("[platform] boot took").
    - repeat: a line that another node, or another marked rank, has already written, word for word
      and as often. Lines that follow a traceback's first line are never repeats.
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
        """Return True if another speaker has already written the text as often as this one."""
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
