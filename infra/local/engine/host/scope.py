"""A control group of one's own for an ordinary user: a scope of systemd's user manager.

A login session's group belongs to root. The user's manager may hand out parts of its own tree,
where quotas can be written (systemd.resource-control(5), `Delegate=`); it does so for what is
started with `systemd-run --user --scope`. Where there is no user manager (most containers, WSL
without systemd, `su`), a duty cycle stands for the quota
(infra/local/engine/process/duty_cycle.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from nodesweep.infra.local.engine.host.cgroups import v1_quotas_look_writable

BUS_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""How `systemd-run --user` finds the user's manager."""
# A property of the cpu controller makes the manager hand that one down to the scope.
_SCOPE = ("--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "-p", "CPUWeight=100")
_DEADLINE_SECONDS = 5.0


def scope_command(environment: Mapping[str, str]) -> list[str]:
    """What to put before a command so that it runs in a scope of its own; [] where it needs none,
    or where no user manager gives one.

    That a group of cgroup v2 looks writable says nothing: in a terminal of a desktop, which is a
    scope of the same manager, groups above are the user's, but the manager's to write in.
    """
    program = shutil.which("systemd-run", path=environment.get("PATH"))
    if program is None or os.geteuid() == 0 or v1_quotas_look_writable():
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


def main() -> int:
    """Say what the platform's server will find. The exit code: 0 where quotas look writable."""
    look = [sys.executable, "-P", "-m", "nodesweep.infra.local.engine.host.cgroups"]
    return subprocess.run([*scope_command(os.environ), *look], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
