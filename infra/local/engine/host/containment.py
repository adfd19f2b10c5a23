"""A node's own host name, /etc/hosts, /opt/ml and process ids, where the kernel lets us have them.

With namespaces (root, or an ordinary user where user namespaces are allowed) hosts are called
algo-1 … algo-n as on AWS, /opt/ml is the node's own tree, and the kernel itself ends all of a node
when its first process ends. Without (most containers) SM_HOSTS holds the loopback addresses
instead: the toolkits take either, nothing else differs for them. A program with paths such as
/opt/ml/input in it needs the namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROBE_TIMEOUT_SECONDS = 20.0  # twice at most, within the minute that a server has to start
_WITHOUT_NAMESPACES = "nodes run without namespaces"
# util-linux only; the node's command becomes process 1 of its namespace, as in a container.
# `hostname` is in every Debian and Red Hat base; sh has to write no file for it (a user namespace
# may not write /proc/sys/kernel/hostname).
_UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_SET_NAMES = """set -e
mount --bind "$1" /etc/hosts
resolver=${1%/*}/resolv.conf
if [ -e "$resolver" ] && [ -e /etc/resolv.conf ]; then
  mount --bind "$resolver" /etc/resolv.conf
fi
hostname "$2"
"""
# Where this machine has no /opt/ml, the node gets a /opt of its own, with all that is in this
# machine's and /opt/ml: a folder made in the machine's own /opt would stay there, and an ordinary
# user can't make one.
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
    """How nodes are wrapped: in namespaces (`unshare` with its options), or not at all (empty)."""

    unshare: tuple[str, ...] = ()
    opt_ml_problem: str | None = _WITHOUT_NAMESPACES
    """Why /opt/ml is not the node's own, None where it is."""

    @classmethod
    def find(cls, scratch: Path) -> Containment:
        """The strongest containment that was seen to work; tried with a real process."""
        unshare = _UNSHARE if os.geteuid() == 0 else (_UNSHARE[0], "--map-root-user", *_UNSHARE[1:])
        complete = cls(unshare, None)
        problem = complete._problem(scratch)
        if problem is None:
            return complete
        without_opt_ml = cls(unshare, problem)
        return without_opt_ml if without_opt_ml._problem(scratch) is None else cls((), problem)

    @property
    def has_host_names(self) -> bool:
        """Whether algo-1 … algo-n resolve inside the nodes."""
        return bool(self.unshare)

    def wrap(self, argv: Sequence[str], host: str, hosts_file: Path, opt_ml: Path) -> list[str]:
        """The command that runs `argv` contained, with the resolv.conf beside `hosts_file` where
        there is one.
        """
        if not self.unshare:
            return list(argv)
        own_opt_ml = _SET_OPT_ML if self.opt_ml_problem is None else ""
        script = _SET_NAMES + own_opt_ml + _BECOME_THE_NODE
        arguments = [str(hosts_file), host, str(opt_ml)]
        return [*self.unshare, "--", "sh", "-c", script, "sh", *arguments, *argv]

    def _problem(self, scratch: Path) -> str | None:
        """Why a process can't be contained so, in the words of the command that failed, or None."""
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
            return f"a trial took longer than {_PROBE_TIMEOUT_SECONDS:g} s"
        except OSError as error:
            return str(error)
        finally:
            shutil.rmtree(probe, ignore_errors=True)
        if done.returncode == 0:
            return None
        said = done.stderr.strip().replace(f"{probe}/", "")
        return said[-300:] or f"exit code {done.returncode}"


def hosts_text(address_by_host: dict[str, str]) -> str:
    """An /etc/hosts in which the nodes find each other."""
    lines = [
        "127.0.0.1 localhost",
        *(f"{address} {host}" for host, address in address_by_host.items()),
    ]
    return "\n".join(lines) + "\n"
