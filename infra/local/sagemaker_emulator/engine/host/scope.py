"""Gets a writable cgroup for an ordinary user: a scope of the systemd user manager.

The cgroup of a login session belongs to root, but the user manager delegates parts of its own tree
(systemd.resource-control(5), `Delegate=`) to programs started by `systemd-run --user --scope`.
Without a user manager (most containers, WSL without systemd, `su`), a duty cycle replaces the
quota (engine/process/duty_cycle.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from sagemaker_emulator.engine.host.cgroups import v1_quotas_look_writable

BUS_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""Environment variables that `systemd-run --user` uses to find the user manager."""
# The manager delegates the cpu controller to the scope only if one of its properties is set.
_SCOPE = ("--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "-p", "CPUWeight=100")
_DEADLINE_SECONDS = 20.0


def scope_command(environment: Mapping[str, str]) -> list[str]:
    """Return the words to prefix to a command to run it in a new scope.

    The result is empty if a scope is not needed or not possible. A cgroup v2 group that looks
    writable proves nothing: a desktop terminal is a scope of the same manager, and the groups above
    it belong to the user, but only the manager may write them.
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
    """Print whether quotas will look writable to the server, and return 0 if they will."""
    look = [sys.executable, "-P", "-m", "sagemaker_emulator.engine.host.cgroups"]
    return subprocess.run([*scope_command(os.environ), *look], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
