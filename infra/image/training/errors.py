"""Errors that the user can correct, as opposed to internal ones.

UserError           reported in one line with exit code 1, no traceback
└─ BootBarrierError the platform never let the node start
"""

from __future__ import annotations


class UserError(Exception):
    """A request this program can't carry out; the message names the field, value, and remedy."""


class BootBarrierError(UserError):
    """The platform's `go` did not arrive before its deadline."""
