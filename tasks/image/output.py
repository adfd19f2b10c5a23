"""Log a build's output, emit progress events, and keep the last lines for errors."""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from nodesweep.events import emit, event_extra
from nodesweep.scaling.secrets import LogHider

LAST_LINES = 20
MAX_LINES_AT_ONCE = 10
# "#7 [3/5] RUN …" or "#7 [stage 3/5] RUN …" (BuildKit), "Step 3/5 : RUN …", podman's "STEP 3/5: …".
_INSTRUCTION = re.compile(
    r"(?:#\d+ \[[^\]]{0,80}?|step )(?P<done>\d+)/(?P<of>\d+)(?:\]| ?:) (?P<said>.+)", re.IGNORECASE
)
# Phases of a local platform's build: "[MAKE virtual environment]", "[COPY] 12 files".
_PHASE = re.compile(
    r"\[(?P<verb>READ|REUSE|COPY|MAKE|DOWNLOAD|INSTALL|DONE)(?P<what>[^\]]{0,80})\](?P<more> .+)?"
)
# pip: "Downloading …/torch-2.13.0%2Bcpu-….whl (191.8 MB)", uv: "Downloading numpy (16.0MiB)"; in
# BuildKit after "#7 2.345 ".
_DOWNLOAD = re.compile(
    r"(?:#\d+ [\d.]+ )?\s*Downloading (?:\S*/)?(?P<file>[^/\s]+)"
    r" \((?P<number>[\d.]+) ?(?P<unit>\w+)\)"
)
# Lines of a local platform's build that are meant for users.
_TOLD = re.compile(r"\[(?P<kind>FETCHED|NOTE)\] (?P<text>.+)")


class BuildOutput:
    """The output of one build."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._hider = LogHider()
        self._last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._counted: dict[str, Any] = {}
        """The number of the current instruction and the total, if the build reports them."""

    def add(self, lines: Iterable[str]) -> None:
        """Log the newest of the given lines, and the number of lines left out."""
        new = self._hider.hide(line for line in lines if line.strip())
        self._last.extend(new)
        notes = [found.group("kind", "text") for found in map(_TOLD.fullmatch, new) if found]
        new = [line for line in new if not _TOLD.fullmatch(line)]
        left_out = len(new) - MAX_LINES_AT_ONCE
        if left_out > 0:
            left_out_line = event_extra("build-line", stage="image")
            self._logger.info("build: … %d lines left out", left_out, extra=left_out_line)
        for line in new[-MAX_LINES_AT_ONCE:]:
            self._logger.info("build: %s", line, extra=event_extra("build-line", stage="image"))
        for kind, text in notes:
            if kind == "NOTE":
                self._logger.warning("%s", text, extra=event_extra("message", stage="image"))
            else:
                self._logger.info(
                    "fetched %s", text, extra=event_extra("image-fetched", stage="image")
                )
        self._emit_progress(new)

    def _emit_progress(self, new: Iterable[str]) -> None:
        """Emit the build's progress from the last new line that shows it."""
        at = ""
        for line in new:
            if found := _INSTRUCTION.match(line):
                done, of, at = found.group("done", "of", "said")
                self._counted = {"done": int(done), "of": int(of), "unit": "instructions"}
            elif found := _PHASE.fullmatch(line):
                verb, what, more = found.group("verb", "what", "more")
                at, self._counted = f"{verb.lower()}{what}{more or ''}", {}
            elif (found := _DOWNLOAD.match(line)) and not found["file"].endswith(".metadata"):
                at = f"downloading {_package(found['file'])} ({found['number']} {found['unit']})"
        if not at:
            return
        if self._counted:
            at = f"instruction {self._counted['done']} of {self._counted['of']}: {at}"
        emit(
            "progress", at, source="image", stage="image", what="image build", **self._counted,
        )  # fmt: skip

    def tail(self) -> str:
        """Return the last lines, each indented on its own line."""
        return "".join(f"\n    {line}" for line in self._last)


def _package(file: str) -> str:
    """Return a wheel's name and version ("torch 2.13.0+cpu"), or any other file's name."""
    name = unquote(file)
    return " ".join(name.split("-")[:2]) if name.endswith(".whl") else name
