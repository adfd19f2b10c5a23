"""A node's own host name, /etc/hosts and process ids, where the kernel lets us have them.

With namespaces (root, or an ordinary user where user namespaces are allowed) hosts are called algo-1 … algo-n as on
AWS, and the kernel itself ends all of a node when its first process ends. Without (most containers) SM_HOSTS holds the
loopback addresses instead: the toolkits take either, nothing else differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROBE_TIMEOUT_SECONDS = 10.0
# util-linux only; `train` becomes process 1 of its namespace, as in a container. `hostname` is in every Debian and
# Red Hat base; sh has to write no file for it (a user namespace may not write /proc/sys/kernel/hostname).
_UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_SET_UP = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True)
class Containment:
    """How nodes are wrapped: in namespaces (`unshare` with its options), or not at all (empty)."""

    unshare: tuple[str, ...] = ()

    @classmethod
    def find(cls, scratch: Path) -> Containment:
        """The strongest containment that was seen to work; tried with a real process."""
        as_root = os.geteuid() == 0
        containment = cls(_UNSHARE if as_root else (_UNSHARE[0], "--map-root-user", *_UNSHARE[1:]))
        hosts_file = scratch / "probe-hosts"
        hosts_file.write_text(hosts_text({"algo-1": "127.0.99.1"}))
        check = (
            "import os, socket\n"
            "seen = (socket.gethostbyname('algo-1'), socket.gethostname(), os.getpid())\n"
            "raise SystemExit(0 if seen == ('127.0.99.1', 'algo-1', 1) else 1)"
        )
        command = containment.wrap([sys.executable, "-I", "-S", "-c", check], "algo-1", hosts_file)
        try:
            done = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_SECONDS, check=False)
        except (OSError, subprocess.SubprocessError):
            return cls()
        finally:
            hosts_file.unlink(missing_ok=True)
        return containment if done.returncode == 0 else cls()

    @property
    def has_host_names(self) -> bool:
        """Whether algo-1 … algo-n resolve inside the nodes."""
        return bool(self.unshare)

    def wrap(self, argv: Sequence[str], host: str, hosts_file: Path) -> list[str]:
        """The command that runs `argv` contained."""
        if not self.unshare:
            return list(argv)
        return [*self.unshare, "--", "sh", "-c", _SET_UP, "sh", str(hosts_file), host, *argv]


def hosts_text(address_by_host: dict[str, str]) -> str:
    """An /etc/hosts in which the nodes find each other."""
    lines = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in address_by_host.items())]
    return "\n".join(lines) + "\n"
