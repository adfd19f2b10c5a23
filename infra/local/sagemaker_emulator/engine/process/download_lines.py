"""Parses the sizes of downloads from the output of pip and uv during a build."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

# pip prints "Downloading https://…/torch-2.13.0%2Bcpu-….whl (191.8 MB)", or only a file name for
# PyPI. uv prints "Downloading numpy (16.0MiB)" for files of 1 MiB or more.
_DOWNLOAD = re.compile(r"\s*Downloading (?P<what>\S+) \((?P<number>[\d.]+) ?(?P<unit>\w+)\)")
_CACHED = re.compile(r"\s*Using cached (?P<what>\S+)")
_LOCAL = re.compile(r"\s*Processing (?P<what>/\S+)")
_RETRYING = "WARNING: Retrying "
_UNITS = {
    "bytes": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3,
    "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3,
}  # fmt: skip


class DownloadSummary:
    """Collects the sizes and sources of downloads from installer output, which it forwards."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self.bytes_by_file: dict[str, int] = {}
        """The size of each downloaded file in bytes, by the name that the installer prints."""
        self.retries: list[str] = []
        """Lines about servers that did not respond to the first request."""
        self._sources: dict[str, str] = {}

    def feed(self, line: str) -> None:
        """Parse a line and forward it."""
        if found := _DOWNLOAD.match(line):
            name = _file_name(found["what"])
            unit = _UNITS.get(found["unit"])
            if unit is not None and not name.endswith(".metadata"):
                self.bytes_by_file[name] = round(float(found["number"]) * unit)
                source = found["what"].removesuffix(_name_in(found["what"]))
                self._sources[name] = source or "pip's index"
        elif found := _CACHED.match(line):
            self._sources[_file_name(found["what"])] = "pip's cache"
        elif found := _LOCAL.match(line):
            self._sources[_file_name(found["what"])] = str(Path(found["what"]).parent)
        elif line.startswith(_RETRYING):
            self.retries.append(line)
        self._on_line(line)

    def wheel_line(self, wheel: Path) -> str:
        """Return a log line with a wheel's source and size, and whether it was downloaded."""
        source = self._sources.get(wheel.name, "a source that pip did not name")
        size = megabytes(wheel.stat().st_size)
        if wheel.name in self.bytes_by_file:
            return f"[FETCHED] {wheel.name}: {size} from {source}"
        return f"[FETCHED] {wheel.name}: not downloaded, since its {size} were in {source}"

    def total_line(self, what: str) -> str:
        """Return a log line with the total size of the downloads for `what`."""
        if not self.bytes_by_file:
            return f"[FETCHED] nothing for {what}: everything was available locally"
        total = megabytes(sum(self.bytes_by_file.values()))
        return f"[FETCHED] {total} for {what}, not counting files below 1 MiB that uv downloaded"


def _file_name(what: str) -> str:
    return unquote(_name_in(what))


def _name_in(what: str) -> str:
    return urlsplit(what).path.rpartition("/")[2] if "/" in what else what


def megabytes(size: float) -> str:
    """Format a size in bytes, for example as 191.8 MB or 2.9 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
