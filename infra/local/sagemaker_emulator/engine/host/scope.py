"""A cgroup for an ordinary user: a scope of systemd's user manager.

A login session's cgroup belongs to root, but the user's manager delegates parts of its own tree
(systemd.resource-control(5), `Delegate=`) to what `systemd-run --user --scope` starts. Without a
user manager (most containers, WSL without systemd, `su`), a duty cycle replaces the quota
(engine/process/duty_cycle.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from sagemaker_emulator.engine.host.cgroups import v1_quotas_look_writable

BUS_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""Variables by which `systemd-run --user` finds the user's manager."""
# Setting a property of the cpu controller makes the manager delegate that controller to the scope.
_SCOPE = ("--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "-p", "CPUWeight=100")
_DEADLINE_SECONDS = 5.0


def scope_command(environment: Mapping[str, str]) -> list[str]:
    """Return a prefix that runs a command in a new scope; [] if none is needed or possible.

    A cgroup v2 group that looks writable proves nothing: a desktop terminal is a scope of the same
    manager, and the groups above it belong to the user, but only the manager may write them.
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
    """Report whether quotas will look writable to the platform's server; return 0 if they will."""
    look = [sys.executable, "-P", "-m", "sagemaker_emulator.engine.host.cgroups"]
    return subprocess.run([*scope_command(os.environ), *look], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
