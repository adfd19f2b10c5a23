"""A file-like view of an S3 object, read by byte ranges.

An object of up to WHOLE_BYTES is fetched in one call and kept in memory; of a larger one, only the
requested range is fetched.
"""

from __future__ import annotations

import io
from typing import Any

WHOLE_BYTES = 4 * 1024 * 1024


class RangeFile(io.RawIOBase):
    """A read-only, seekable file; a subclass fetches the ranges of bytes."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._place = 0
        self._whole: bytes | None = None

    def get(self, begin: int, count: int) -> bytes:
        """Return these bytes of the object; the subclass's errors pass through read()."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True: the file is open for reading."""
        return True

    def seekable(self) -> bool:
        """Return True: any range of bytes can be requested."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it."""
        begin = (0, self._place, self._size_bytes)[whence]
        self._place = max(0, begin + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, and return the number of bytes read."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Return the object's bytes from the current position to its end."""
        return self.read(self._size_bytes)

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes; -1 or None reads to the end."""
        left = max(0, self._size_bytes - self._place)
        count = left if size is None or size < 0 else min(size, left)
        if count == 0:
            return b""
        begin = self._place
        if self._size_bytes > WHOLE_BYTES:
            data = self.get(begin, count)
        else:
            if self._whole is None:
                self._whole = self.get(0, self._size_bytes)
            data = self._whole[begin : begin + count]
        self._place += len(data)
        return data
