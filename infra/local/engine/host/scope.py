"""A control group of one's own for an ordinary user: a scope of systemd's user manager.

A login session's group belongs to root. The user's manager may hand out parts of its own tree,
where quotas can be written (systemd.resource-control(5), `Delegate=`); it does so for what is
started with `systemd-run --user --scope`. Where there is no user manager (most containers, WSL
without systemd, `su`), a duty cycle stands for the quota
(infra/local/engine/process/duty_cycle.py).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from infra.local.engine.host.cgroups import look_for_quotas

BUS_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""How `systemd-run --user` finds the user's manager."""
# A property of the cpu controller makes the manager hand that one down to the scope.
_SCOPE = ("--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "-p", "CPUWeight=100")
_DEADLINE_SECONDS = 5.0


def scope_command(environment: Mapping[str, str]) -> list[str]:
    """What to put before a command so that it runs in a scope of its own; [] where it needs none,
    since quotas look writable as it is, or where no user manager gives one.
    """
    program = shutil.which("systemd-run", path=environment.get("PATH"))
    if program is None or look_for_quotas()[0]:
        return []
    command = [program, *_SCOPE, "--"]
    try:
        subprocess.run(
            [*command, "true"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_DEADLINE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return command
