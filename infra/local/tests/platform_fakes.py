"""A fake engine, whose nodes are threads that run a Python callable, and a fake image store."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sagemaker_emulator.interfaces import (
    BuiltImage,
    ImageBuildError,
    JobSpec,
    LineSink,
    Node,
    NodeAttainment,
    NodeExit,
    NodeUsage,
    RunResult,
)

IMAGE_DIGEST = "sha256:" + "a" * 64
IMAGE_URI = f"000000000000.dkr.ecr.us-east-1.amazonaws.com/trainer@{IMAGE_DIGEST}"

Program = Callable[[JobSpec, Node, Callable[[str], None], threading.Event], None]
"""Called with (job, node, print, stop). An exception fails the node."""


def quick_program(
    job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
) -> None:
    """Write the files of a successful training run."""
    for step in range(3):
        say(f"train_loss={1.0 / (step + 1):.3f};")
    (node.opt_ml / "model" / "model.bin").write_text(node.host)
    (node.opt_ml / "output" / "data" / "metrics.json").write_text("{}")
    (node.opt_ml / "output" / "data" / f"{node.host}.txt").write_text(node.host)


def endless_program(
    job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
) -> None:
    """Run until stopped."""
    say("waiting")
    stop.wait()


def _attained(share: float) -> NodeAttainment:
    return NodeAttainment(10.0, 2.0, share, 1.0, None, None)


class FakeEngine:
    """Implements `sagemaker_emulator.interfaces.Engine` with threads.

    The hyperparameter "program", or a Processing job's variable PROGRAM, selects the program.
    """

    def __init__(self, state_dir: Path, programs: Mapping[str, Program] | None = None) -> None:
        self._state_dir = state_dir
        self.programs: dict[str, Program] = {
            "quick": quick_program,
            "endless": endless_program,
            **(programs or {}),
        }
        self.attains: Callable[[JobSpec], float | None] = lambda job: None
        """The share of the requested CPU time that nodes get, or None if unknown."""
        self.most_jobs_at_once = 0
        self.limits_seconds: list[float] = []
        """The maximum runtime of every run."""
        self.machine_is_free = threading.Event()
        self.machine_is_free.set()
        self._running = 0
        self._killed: set[tuple[str, str]] = set()
        self._hosts: dict[str, list[str]] = {}

    def capacity_problem(self, instance_type: str, instance_count: int) -> str | None:
        """Reject more than 8 nodes."""
        return f"{instance_count} nodes do not fit" if instance_count > 8 else None

    def command_problem(self, entrypoint: Sequence[str], arguments: Sequence[str]) -> str | None:
        """Reject an entry point that contains "absent"."""
        return f"no {entrypoint[0]} here" if "absent" in entrypoint else None

    def image_command_problem(self) -> str | None:
        """Return None."""
        return None

    def isolation(self, instance_type: str) -> str:
        """Return a description for the platform's log."""
        return "not isolated (fake engine)"

    def prepare(self, job: JobSpec) -> Sequence[Node]:
        """Create the nodes' folders."""
        nodes = []
        for number in range(1, job.instance_count + 1):
            opt_ml = self._state_dir / job.job_name / f"algo-{number}"
            own = job.processing.folders if job.processing else ()
            for folder in ("model", "output/data", "input/config", "checkpoints", *own):
                (opt_ml / folder).mkdir(parents=True, exist_ok=True)
            for channel in job.input_data_config:
                (opt_ml / "input" / "data" / channel["ChannelName"]).mkdir(parents=True)
            nodes.append(Node(f"algo-{number}", f"127.0.1.{number}", opt_ml))
        return nodes

    @contextlib.contextmanager
    def turn(
        self, job: JobSpec, stop: threading.Event, deadline: float, on_wait: Callable[[], None]
    ) -> Iterator[bool]:
        """Wait until `machine_is_free` is set. Until then, another platform uses the machine."""
        if not self.machine_is_free.is_set():
            on_wait()
        while (
            not self.machine_is_free.wait(0.01)
            and not stop.is_set()
            and time.monotonic() < deadline
        ):
            pass
        yield self.machine_is_free.is_set()

    def run(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        """Run the program in one thread per node."""
        self.limits_seconds.append(max_runtime_seconds)
        self._running += 1
        self.most_jobs_at_once = max(self.most_jobs_at_once, self._running)
        over, errors = threading.Event(), {}
        self._hosts[job.job_name] = [node.host for node in nodes]

        def train(node: Node) -> None:
            try:
                named = job.hyperparameters.get("program") or job.environment.get("PROGRAM")
                program = self.programs[named or "quick"]
                program(
                    job, node, lambda line: on_line(node.host, line, int(time.time() * 1000)), over
                )
            except Exception as error:
                errors[node.host] = f"AlgorithmError: {error}"
                over.set()

        threads = [threading.Thread(target=train, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + max_runtime_seconds
        timed_out = False
        while any(thread.is_alive() for thread in threads):
            timed_out = timed_out or time.monotonic() > deadline
            if stop.is_set() or timed_out:
                over.set()
            for node in nodes:
                if (job.job_name, node.host) in self._killed:
                    errors[node.host] = f"AlgorithmError: {node.host} was killed, exit code: 137"
                    over.set()
            threads[0].join(0.005)
        self._running -= 1
        del self._hosts[job.job_name]
        failed = next(iter(errors), None)
        exits = [
            NodeExit(node.host, int(node.host in errors), time.time(), None, False)
            for node in nodes
        ]
        share = self.attains(job)
        attained = {} if share is None else {node.host: _attained(share) for node in nodes}
        return RunResult(
            exits,
            failed,
            errors.get(failed or ""),
            stop.is_set(),
            timed_out,
            attainment=attained,
        )

    def kill_node(self, job: JobSpec, host: str) -> None:
        """Fail a node as if it had been killed."""
        self._killed.add((job.job_name, host))

    def usage(self, job: JobSpec) -> Mapping[str, NodeUsage]:
        """Return 0.1 CPU seconds per second and node, which is 20% of half a vCPU."""
        seconds = 0.1 * time.monotonic()
        return {host: NodeUsage(seconds, 2**20, 0.5) for host in self._hosts.get(job.job_name, ())}

    def clean_up(self, job: JobSpec) -> None:
        """Remove the job's folders."""
        shutil.rmtree(self._state_dir / job.job_name, ignore_errors=True)


class FakeImageStore:
    """Implements `sagemaker_emulator.interfaces.ImageStore` with a hash of the Dockerfile."""

    def __init__(self) -> None:
        self.tags: dict[tuple[str, str], str] = {("trainer", "v1"): IMAGE_DIGEST}
        self.build_arguments: Mapping[str, str] = {}

    def build(
        self,
        context: Path,
        repository: str,
        tag: str,
        build_args: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
        deadline_seconds: float,
    ) -> BuiltImage:
        """Return the digest of the Dockerfile, or fail if it begins with WAIT or BREAK."""
        text = (context / "Dockerfile").read_text()
        on_line(f"building {len(text)} characters")
        self.build_arguments = dict(build_args)
        if text.startswith("WAIT"):
            stop.wait(deadline_seconds)
            raise ImageBuildError("interrupted")
        if text.startswith("BREAK"):
            raise ImageBuildError("pip install: exit status 1\nno such package")
        self.tags[repository, tag] = digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        return BuiltImage(digest)

    def resolve(self, image_uri: str) -> Path | None:
        """Return a folder for a known image, else None."""
        name = image_uri.partition("/")[2]
        known = {f"{repository}:{tag}" for repository, tag in self.tags}
        known |= {f"{repository}@{digest}" for (repository, _), digest in self.tags.items()}
        return Path("/") if name in known else None

    def images(self) -> Sequence[tuple[str, str, str]]:
        """Return (repository, tag, digest) of every image."""
        return [(repository, tag, digest) for (repository, tag), digest in self.tags.items()]
