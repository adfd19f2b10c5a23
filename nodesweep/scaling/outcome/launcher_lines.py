"""Recognize torchrun's messages about an agent that left the rendezvous before other agents.

In a completed job, they show a harmless race; in a failed job, they are a consequence of the
failure. The formats were taken from torch 2.13 (TCPStore.cpp, dynamic_rendezvous.py). Since torch
2.3, lines of a rank in this format begin with "[rank1]:", which distinguishes them from lines of an
agent.
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
    """Return True if the line is part of a message about the race.

    `follows_race` is True if the previous line is part of such a message.
    """
    return bool(
        _STORE_LOST.match(line)
        or _RENDEZVOUS_LOST.match(line)
        or (follows_race and _STACK.match(line))
    )
