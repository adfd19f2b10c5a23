"""`smspark-submit`, the command of AWS's Spark image, for images without it.

    smspark-submit [--jars LIST] [--py-files LIST] [--files LIST]
                   [--local-spark-event-logs-dir DIR] [-v] APP [ARGUMENT…]

Every node of a Processing job runs it. The first host is the primary, which runs the cluster's
master, a worker, and the driver; the other hosts run a worker and end with the primary. AWS's image
does the same with YARN, so a program that takes its master from spark-submit runs on both. Spark
properties come from /opt/ml/processing/input/conf/configuration.json, to which PySparkProcessor
writes its `configuration`; only the classification spark-defaults is used.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
OPT_ML = Path("/opt/ml")
MASTER_PORT, MASTER_PAGE_PORT, PRESENCE_PORT = 7077, 8080, 5555
CLUSTER_SECONDS = 300.0
"""Deadline for all workers to register: a node may have a fifth of a CPU and runs several JVMs."""
DAEMON_MEMORY, WORKER_MEMORY = "256m", "1536m"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java compiles quickly rather than well, since a share of a CPU runs programs of seconds."""
PROPERTIES = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.memory": "768m",
    "spark.executor.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Defaults for nodes with 2 GiB; spark-defaults in the job's configuration override them."""
NO_JAVA = (
    "smspark-submit: Spark needs Java, but there is no `java` on PATH: install Java 17 or newer on"
    " the machine that runs the local platform (Debian: apt-get install openjdk-17-jre-headless)"
)
NOT_EMULATED = "{} is not emulated here: leave it out, or run the job in AWS's Spark image"


class SubmitError(Exception):
    """A job that can't be run; the text becomes its exit message."""


def main() -> None:
    """Run this node's part and exit with the job's exit code."""
    # A job is stopped by SIGTERM, which PID 1 of a container ignores unless it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        code = run(sys.argv[1:])
    except SubmitError as error:
        code = leave_message(str(error))
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run this node's part and return its exit code.

    Raises:
        SubmitError: Java is missing, an option is not emulated, or the cluster did not form.
    """
    options = parse(arguments)
    if shutil.which("java") is None:
        raise SubmitError(NO_JAVA)
    resources = json.loads((OPT_ML / "config" / "resourceconfig.json").read_text())
    cluster = Cluster(resources["current_host"], resources["hosts"])
    # Spark's scripts need SPARK_HOME; PYSPARK_PYTHON is the first python3 on each node's PATH.
    os.environ |= {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": "python3"}
    os.environ |= {"SPARK_LOCAL_IP": cluster.address, "SPARK_DAEMON_MEMORY": DAEMON_MEMORY}
    os.environ |= {"SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS}
    os.environ |= {"SPARK_LOCAL_DIRS": str(cluster.folder / "local")}
    try:
        return cluster.run_primary(options) if cluster.is_primary else cluster.run_worker()
    finally:
        cluster.end()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments as AWS's command does.

    Raises:
        SubmitError: An option is not emulated.
    """
    parser = argparse.ArgumentParser(prog="smspark-submit", allow_abbrev=False)
    parser.add_argument("--class", dest="main_class")
    for name in ("--jars", "--py-files", "--files"):
        parser.add_argument(name, type=listed_files)
    parser.add_argument("--spark-event-logs-s3-uri")
    parser.add_argument("--local-spark-event-logs-dir", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("app")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.main_class:
        raise SubmitError(NOT_EMULATED.format("--class"))
    if options.spark_event_logs_s3_uri:
        raise SubmitError(NOT_EMULATED.format("--spark-event-logs-s3-uri"))
    return options


def listed_files(text: str) -> str:
    """Return a comma-separated list with each folder replaced by its files.

    Raises:
        argparse.ArgumentTypeError: A file does not exist.
    """
    found = []
    for path in map(Path, text.split(",")):
        files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise argparse.ArgumentTypeError(f"{path} is neither a file nor a folder with files")
        found += [str(file) for file in files]
    return ",".join(found)


def spark_home() -> Path:
    """Return the folder into which pip installed Spark."""
    import pyspark

    return Path(pyspark.__file__).parent


class Cluster:
    """This node's part of a standalone cluster of the job's nodes."""

    def __init__(self, host: str, hosts: Sequence[str]) -> None:
        self._host = host
        self._hosts = sorted(hosts)
        self._primary = self._hosts[0]
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.address = socket.gethostbyname(host)
        self.folder = Path.home() / "spark"
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def is_primary(self) -> bool:
        """True on the first of the job's hosts."""
        return self._host == self._primary

    def run_primary(self, options: argparse.Namespace) -> int:
        """Run master, worker, and driver; return the driver's exit code."""
        presence = socket.create_server((self.address, PRESENCE_PORT))
        threading.Thread(target=keep_connections, args=(presence,), daemon=True).start()
        self._start(
            "master.Master",
            *("--host", self._host, "--port", str(MASTER_PORT)),
            *("--webui-port", str(MASTER_PAGE_PORT)),
        )
        self._start_worker()
        wait_for(self._all_are_there, f"the Spark workers on {', '.join(self._hosts)}", self._check)
        done = subprocess.run(self._submission(options), check=False)
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return leave_message(f"spark-submit exited with code {code}", code) if code else 0

    def run_worker(self) -> int:
        """Run a worker until the primary has ended."""
        self._start_worker()
        presence = wait_for(self._connect, f"the primary node, {self._primary},", self._check)
        presence.settimeout(1.0)
        while True:
            with suppress(TimeoutError):
                if not presence.recv(1):
                    return 0
            self._check()

    def end(self) -> None:
        """Stop this node's daemons."""
        for daemon in self._daemons:
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def _start_worker(self) -> None:
        self._start(
            "worker.Worker",
            *("--host", self._host, "--cores", "1", "--memory", WORKER_MEMORY),
            *("--webui-port", "0", "--work-dir", str(self.folder / "work")),
            f"spark://{self._primary}:{MASTER_PORT}",
        )

    def _start(self, name: str, *arguments: str) -> None:
        command = [f"{spark_home()}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
        self._daemons.append(subprocess.Popen(command))

    def _check(self) -> None:
        """Raise SubmitError if a daemon of this node has ended."""
        if any(daemon.poll() is not None for daemon in self._daemons):
            raise SubmitError(f"a Spark daemon on {self._host} has ended; see the job's log")

    def _all_are_there(self) -> bool | None:
        page = f"http://{self._host}:{MASTER_PAGE_PORT}/json/"
        with suppress(OSError), urllib.request.urlopen(page, timeout=10) as answer:
            return json.load(answer)["aliveworkers"] >= len(self._hosts) or None
        return None

    def _connect(self) -> socket.socket | None:
        with suppress(OSError):
            return socket.create_connection((self._primary, PRESENCE_PORT), timeout=10)
        return None

    def _submission(self, options: argparse.Namespace) -> list[str]:
        properties = {
            **PROPERTIES,
            "spark.driver.host": self._host,
            "spark.driver.bindAddress": self.address,
            "spark.default.parallelism": str(2 * len(self._hosts)),
            **configured_properties(OPT_ML / "processing/input/conf/configuration.json"),
        }
        if folder := options.local_spark_event_logs_dir:
            folder.mkdir(parents=True, exist_ok=True)
            properties |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": folder.as_uri()}
        command = [f"{spark_home()}/bin/spark-submit", "--deploy-mode", "client"]
        command += ["--master", f"spark://{self._primary}:{MASTER_PORT}"]
        for name in ("jars", "py_files", "files"):
            if value := getattr(options, name):
                command += [f"--{name.replace('_', '-')}", value]
        for name, value in properties.items():
            command += ["--conf", f"{name}={value}"]
        verbose = ["--verbose"] if options.verbose else []
        return [*command, *verbose, options.app, *options.arguments]


def configured_properties(file: Path) -> dict[str, str]:
    """Return the properties of classification spark-defaults in a job's configuration."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text())
    entries = content if isinstance(content, list) else [content]
    found: dict[str, str] = {}
    for entry in entries:
        if entry["Classification"] == "spark-defaults":
            found |= entry["Properties"]
        else:
            print(
                f"smspark-submit: ignoring classification {entry['Classification']}: only"
                " spark-defaults is emulated"
            )
    return found


def keep_connections(server: socket.socket) -> None:
    """Keep every connection open until this process ends; the peers notice when it closes."""
    connections = []
    while True:
        connections.append(server.accept())


def wait_for(ask: Callable[[], T | None], what: str, check: Callable[[], None]) -> T:
    """Return the first value of `ask` that is not None.

    Raises:
        SubmitError: There was none before the deadline, or `check` raised it.
    """
    deadline, pause_seconds = time.monotonic() + CLUSTER_SECONDS, 0.2
    while (answer := ask()) is None:
        check()
        if time.monotonic() >= deadline:
            raise SubmitError(f"{what} did not come up within {CLUSTER_SECONDS:g} s")
        time.sleep(pause_seconds * random.uniform(0.5, 1.0))
        pause_seconds = min(2.0, 1.5 * pause_seconds)
    return answer


def leave_message(text: str, code: int = 1) -> int:
    """Print the text and make it the job's exit message, unless the program has left one."""
    print(text, file=sys.stderr, flush=True)
    message = OPT_ML / "output" / "message"
    if not message.exists():
        with suppress(OSError):
            message.write_text(f"{text}\n")
    return code


if __name__ == "__main__":
    main()
