"""What the user can put right, as opposed to what went wrong inside.

UserError           said in one line and exit code 1, no traceback
└─ BootBarrierError the platform never let the node start
"""

from __future__ import annotations


class UserError(Exception):
    """A request this program can't carry out;
    the message says which thing, what it got and what to do.
    """


class BootBarrierError(UserError):
    """The platform's `go` did not come within its deadline."""
