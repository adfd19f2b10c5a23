"""Lines that torchrun's agents write where one of them ended before another had taken its leave: a
race at the end of a job that completed, and a consequence in one that failed.

Forms: torch 2.13 (TCPStore.cpp, dynamic_rendezvous.py). A rank's own lines of the same form begin
with its mark, "[rank1]:", from torch 2.3 on, so they are not taken for an agent's.
"""

from __future__ import annotations

import re

_STORE_LOST = re.compile(
    r"\[W\d{4} [\d:.]+ TCPStore\.cpp:\d+\] \[c10d\] \w+ failed on SocketImpl\("
)
_RENDEZVOUS_LOST = re.compile(
    r".{0,80}torch[./]distributed[./]elastic[./]rendezvous[./]dynamic_rendezvous\b.{0,80}"
    r"The node '.{1,200}' has failed to .{1,200} due to an error of type Rendezvous\w*Error"
)
_STACK = re.compile(r"Exception raised from \w+ at |frame #\d+: |<omitting python frames>|\s*$")


def is_of_race(line: str, follows_race: bool) -> bool:
    """Return whether a line is of the race; `follows_race`: the line before it was."""
    return bool(
        _STORE_LOST.match(line)
        or _RENDEZVOUS_LOST.match(line)
        or (follows_race and _STACK.match(line))
    )
