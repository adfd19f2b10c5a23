"""What a build says while it runs: its new lines in the run's log, a few at a time, the instruction
that it is at, and the last lines for an error.
"""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Iterable

from scaling.secrets import LogHider
from tasks.events import about, tell

LAST_LINES = 20
MAX_LINES_AT_ONCE = 10
# "#7 [3/5] RUN …" or "#7 [stage 3/5] RUN …" (BuildKit), "Step 3/5 : RUN …", podman's "STEP 3/5: …".
_INSTRUCTION = re.compile(
    r"(?:#\d+ \[[^\]]{0,80}?|step )(?P<done>\d+)/(?P<of>\d+)(?:\]| ?:) (?P<said>.+)", re.IGNORECASE
)
# What the local platform wants people to read, of all that its builds say.
_TOLD = re.compile(r"\[(?P<kind>FETCHED|NOTE)\] (?P<text>.+)")


class BuildOutput:
    """Lines of one build, as they come."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._hider = LogHider()
        self._last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)

    def add(self, lines: Iterable[str]) -> None:
        """Log what is new since the last call: the last few lines, and how many were left out."""
        new = self._hider.hide(line for line in lines if line.strip())
        self._last.extend(new)
        told = [found.group("kind", "text") for found in map(_TOLD.fullmatch, new) if found]
        new = [line for line in new if not _TOLD.fullmatch(line)]
        left_out = len(new) - MAX_LINES_AT_ONCE
        if left_out > 0:
            left_out_line = about("build-line", stage="image")
            self._logger.info("build: … %d lines left out", left_out, extra=left_out_line)
        for line in new[-MAX_LINES_AT_ONCE:]:
            self._logger.info("build: %s", line, extra=about("build-line", stage="image"))
        for kind, text in told:
            if kind == "NOTE":
                self._logger.warning("%s", text, extra=about("message", stage="image"))
            else:
                self._logger.info("fetched %s", text, extra=about("image-fetched", stage="image"))
        begun = [found for found in map(_INSTRUCTION.match, new) if found]
        if begun:
            done, of, said = begun[-1].group("done", "of", "said")
            tell(
                "progress", f"instruction {done} of {of}: {said}",
                source="image", stage="image",
                what="image build", done=int(done), of=int(of), unit="instructions",
            )  # fmt: skip

    def tail(self) -> str:
        """The last lines, indented and each after a line break; empty where nothing was said."""
        return "".join(f"\n    {line}" for line in self._last)
