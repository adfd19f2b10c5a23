"""Gives each node a private host name, /etc/hosts, /opt/ml and process ids, if the kernel allows.

With namespaces (root, or a user who may create user namespaces), hosts are named algo-1 … algo-n as
on AWS, each node has a private /opt/ml, and the kernel kills the whole node when its first process
ends. Without namespaces (in most containers), SM_HOSTS holds loopback addresses, which the toolkits
accept, but programs with hard-coded paths such as /opt/ml/input do not work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROBE_TIMEOUT_SECONDS = 20.0  # needed at most twice; a server has a minute to start
_WITHOUT_NAMESPACES = "nodes run without namespaces"
# util-linux only; the node's command becomes process 1 of its namespace, as in a container.
# `hostname` is in every Debian and Red Hat base image. sh cannot write the name to a file instead,
# since /proc/sys/kernel/hostname is read-only in a user namespace.
_UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_SET_NAMES = """set -e
mount --bind "$1" /etc/hosts
resolver=${1%/*}/resolv.conf
if [ -e "$resolver" ] && [ -e /etc/resolv.conf ]; then
  mount --bind "$resolver" /etc/resolv.conf
fi
hostname "$2"
"""
# If this machine has no /opt/ml, the node gets a private /opt with the machine's content and
# /opt/ml. A folder created in the machine's /opt would remain there, and ordinary users cannot
# create one.
_SET_OPT_ML = """
if [ ! -d /opt/ml ]; then
  aside=${3%/*}/opt
  mkdir -p "$aside"
  mount --rbind /opt "$aside"
  mount -t tmpfs -o mode=755 tmpfs /opt
  for entry in "$aside"/* "$aside"/.[!.]*; do
    own=/opt/${entry##*/}
    if [ -h "$entry" ]; then
      cp -P "$entry" "$own"
    elif [ -d "$entry" ]; then
      mkdir "$own"
      mount --rbind "$entry" "$own"
    elif [ -e "$entry" ]; then
      : > "$own"
      mount --bind "$entry" "$own"
    fi
  done
  umount --recursive --lazy "$aside"
  mkdir /opt/ml
fi
mount --bind "$3" /opt/ml
"""
_BECOME_THE_NODE = 'shift 3; exec "$@"'


@dataclass(frozen=True)
class Containment:
    """Wraps node commands in namespaces (`unshare` and its options), or in nothing if empty."""

    unshare: tuple[str, ...] = ()
    opt_ml_problem: str | None = _WITHOUT_NAMESPACES
    """Why nodes have no private /opt/ml, or None if they have one."""

    @classmethod
    def find(cls, scratch: Path) -> Containment:
        """Return the strongest containment that works in a test on this machine."""
        unshare = _UNSHARE if os.geteuid() == 0 else (_UNSHARE[0], "--map-root-user", *_UNSHARE[1:])
        complete = cls(unshare, None)
        problem = complete._problem(scratch)
        if problem is None:
            return complete
        without_opt_ml = cls(unshare, problem)
        return without_opt_ml if without_opt_ml._problem(scratch) is None else cls((), problem)

    @property
    def has_host_names(self) -> bool:
        """True if algo-1 … algo-n resolve inside the nodes."""
        return bool(self.unshare)

    def wrap(self, argv: Sequence[str], host: str, hosts_file: Path, opt_ml: Path) -> list[str]:
        """Return the command that runs `argv` inside the containment.

        The node gets the resolv.conf next to `hosts_file`, if there is one.
        """
        if not self.unshare:
            return list(argv)
        own_opt_ml = _SET_OPT_ML if self.opt_ml_problem is None else ""
        script = _SET_NAMES + own_opt_ml + _BECOME_THE_NODE
        arguments = [str(hosts_file), host, str(opt_ml)]
        return [*self.unshare, "--", "sh", "-c", script, "sh", *arguments, *argv]

    def _problem(self, scratch: Path) -> str | None:
        """Return the command's error if a process cannot be contained this way, else None."""
        probe = scratch / "probe"
        hosts_file, opt_ml = probe / "hosts", probe / "ml"
        opt_ml.mkdir(parents=True, exist_ok=True)
        hosts_file.write_text(hosts_text({"algo-1": "127.0.99.1"}))
        (opt_ml / "own").touch()
        check = (
            "import os, socket\n"
            "seen = (socket.gethostbyname('algo-1'), socket.gethostname(), os.getpid())\n"
            f"has_own = os.path.exists('/opt/ml/own') or {self.opt_ml_problem is not None}\n"
            "as_meant = seen == ('127.0.99.1', 'algo-1', 1) and has_own\n"
            "raise SystemExit(0 if as_meant else 'no effect')"
        )
        command = self.wrap([sys.executable, "-I", "-S", "-c", check], "algo-1", hosts_file, opt_ml)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"a test took longer than {_PROBE_TIMEOUT_SECONDS:g} s"
        except OSError as error:
            return str(error)
        finally:
            shutil.rmtree(probe, ignore_errors=True)
        if done.returncode == 0:
            return None
        output = done.stderr.strip().replace(f"{probe}/", "")
        return output[-300:] or f"exit code {done.returncode}"


def hosts_text(address_by_host: dict[str, str]) -> str:
    """Return the text of an /etc/hosts that lets the nodes resolve each other's names."""
    lines = [
        "127.0.0.1 localhost",
        *(f"{address} {host}" for host, address in address_by_host.items()),
    ]
    return "\n".join(lines) + "\n"
