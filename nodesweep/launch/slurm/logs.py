"""Read the new lines of a running job from its folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from nodesweep.scaling.secrets import LogHider

_PIECE_BYTES = 1 << 20


class NodeLogs:
    """The log of a job, one file per node; see nodesweep.launch.protocol.JobLog."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}
        self._hiders: dict[Path, LogHider] = {}
        self.has_more = False

    @property
    def location(self) -> str:
        """A description of where the full log is."""
        return f"{self._folder}/node-*.log"

    def new_lines(self) -> Iterator[tuple[int, str]]:
        """Yield up to 1 MiB of new lines per node, with the time at which they are read."""
        now, self.has_more = int(time.time() * 1000), False
        for path in sorted(self._folder.glob("node-*.log")):
            start = self._read_bytes.get(path, 0)
            with path.open("rb") as stream:
                stream.seek(start)
                piece = stream.read(_PIECE_BYTES)
            # A line that is still being written is read by the next call.
            end = piece.rfind(b"\n") + 1 or (len(piece) if len(piece) == _PIECE_BYTES else 0)
            self._read_bytes[path] = start + end
            self.has_more |= len(piece) == _PIECE_BYTES
            lines = piece[:end].decode(errors="replace").splitlines()
            hidden = self._hiders.setdefault(path, LogHider()).hide(lines)
            yield from ((now, f"{path.stem}: {text}") for text in hidden)
