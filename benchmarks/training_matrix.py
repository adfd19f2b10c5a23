"""Test the training program (infra/image) with every PyTorch release of its possible containers.

    make matrix                            # all releases: about 5 GB of downloads each
    .venv/bin/python -m benchmarks.training_matrix --versions 2.3.0 2.13.0 [--keep]
        [--output FILE.json]

The benchmark creates one environment after another with the contents of such a container (its
Python, torch and NumPy) and the packages that the Dockerfile adds, in the same two steps:
requirements-on-dlc.lock, then packages that torch and Lightning still lack. In each environment the
program is imported, trains on one rank and on two ranks over gloo under every strategy of that
release, is killed and resumes from its checkpoint, and refuses other strategies with a one-sentence
message. A script that reports no time must be measured from outside within 2% of its own stopwatch.
An environment is deleted after its test, unless --keep.

Results are stored after every release and merged with those already in the output, by default a
file of the day; a release without a result is "not run". Exit code 1 if a check did not end as
expected. There is no GPU, so the only check of smddp, xla and smp is that they are refused, and
nccl is not tested.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nodesweep.configs.atomic import SHARED, write_atomic
from nodesweep.scaling.names import pretty_json

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGE = REPOSITORY / "infra" / "image"
LOCK = IMAGE / "requirements-on-dlc.lock"
sys.path.append(str(IMAGE))
from training.torch_versions import FIRST_RELEASE, FSDP2_ON_CPUS  # noqa: E402  (imports no torch)

RESULTS = Path(__file__).parent / "results"
ENVIRONMENTS = REPOSITORY / ".nodesweep" / "matrix"
DEADLINE_SECONDS = 600.0  # of one training, which takes seconds on an idle machine
INSTALL_DEADLINE_SECONDS = 3600.0
STEPS = 40
SGD = ("--optimizer", "sgd")
QUICK = ("--max-steps", str(STEPS), "--epochs", "9")
UNMODIFIED = """
import os, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.set_num_threads(1)
data = TensorDataset(torch.randn(4096, 512), torch.randint(4, (4096,)))
net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 4))
model = torch.nn.parallel.DistributedDataParallel(net)
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
optimizer = torch.optim.AdamW(model.parameters())
started = time.perf_counter()
for epoch in range(4):
    for pixels, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
seconds = time.perf_counter() - started
if dist.get_rank() == 0:
    with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "stopwatch"), "w") as stream:
        stream.write(str(seconds))
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Container:
    """Contents of an AWS container for a PyTorch release.

    The Python version is from the container's tag (sagemaker-core's table of images, 2026-11). Tags
    from 2.11 on do not name it; 3.12 is nodesweep's choice, except for 2.13. NumPy is 1.26 up to
    PyTorch 2.5.
    """

    torch: str
    python: str
    numpy: str = "numpy"


CONTAINERS = (
    Container("2.1.0", "3.10", "numpy<2"),
    Container("2.2.0", "3.10", "numpy<2"),
    Container("2.3.0", "3.11", "numpy<2"),
    Container("2.4.1", "3.11", "numpy<2"),
    Container("2.5.1", "3.11", "numpy<2"),
    Container("2.6.0", "3.12"),
    Container("2.7.1", "3.12"),
    Container("2.8.0", "3.12"),
    Container("2.9.0", "3.12"),
    Container("2.10.0", "3.13"),
    Container("2.11.0", "3.12"),
    Container("2.12.1", "3.12"),
    Container("2.13.0", "3.11"),  # Python of the image's environment (requirements.txt)
    Container("2.14.1", "3.12"),
)


@dataclass(frozen=True)
class Check:
    """Result of one check: `ok`, `refused` with a one-sentence `reason`, or `failed`."""

    name: str
    outcome: str
    expected: str
    seconds: float
    reason: str | None = None


def release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, such as (2, 3) for 2.3.0."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


class Trainer:
    """Runs the training program in one environment, with a new folder for every training."""

    def __init__(self, python: Path, scratch: Path) -> None:
        self._python, self._scratch = python, scratch
        self._runs = 0

    def train(self, *arguments: str, ranks: int = 1) -> dict[str, Any]:
        """Train to the end and return metrics.json; torchrun starts multiple ranks."""
        self._runs += 1
        launcher = (
            ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
            if ranks > 1
            else ()
        )
        code = _wait(self._start("0", launcher, arguments, {}))
        if code:
            raise CheckError(f"exit code {code}: {self._said()}")
        metrics: dict[str, Any] = json.loads((self._folder() / "data" / "metrics.json").read_text())
        return metrics

    def measure(self, script: str, ranks: int) -> tuple[dict[str, Any], float]:
        """Run a script that reports no time; return metrics.json and the script's stopwatch.

        The script writes its seconds to the file `stopwatch` in SM_OUTPUT_DATA_DIR.
        """
        self._runs += 1
        data = self._folder() / "data"
        data.mkdir(parents=True)
        program = self._folder() / "script.py"
        program.write_text(script)
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        variables = {"PYTHONPATH": str(IMAGE), "SM_USER_ENTRY_POINT": program.name}
        code = _wait(self._start("0", launcher, (), variables, (str(program),)))
        if code or not (data / "metrics.json").exists():
            raise CheckError(f"exit code {code}, files {os.listdir(data)}: {self._said()}")
        return json.loads((data / "metrics.json").read_text()), float(
            (data / "stopwatch").read_text()
        )

    def refusal(self, *arguments: str, ranks: int = 1) -> str:
        """Start an unsupported training; return the error message that every rank exits with."""
        codes = [_wait(process) for process in self._start_ranks(ranks, arguments)]
        refusals = {
            re.sub(r"(?s).*^ValueError: ", "", self._stderr(rank), flags=re.M).strip()
            for rank in range(ranks)
        }
        if (
            codes != [1] * ranks
            or len(refusals) != 1
            or "\n" in (message := refusals.pop())
            or "Traceback" in message
        ):
            raise CheckError(f"exit codes {codes}, expected 1 with one message: {self._said()}")
        return message

    def interrupt(self, checkpoint: Path, *arguments: str, ranks: int) -> None:
        """Kill a training as soon as it has written a checkpoint."""
        processes, started = self._start_ranks(ranks, arguments), time.monotonic()
        try:
            while not checkpoint.exists():
                if any(process.poll() is not None for process in processes):
                    raise CheckError(f"ended without a checkpoint: {self._said()}")
                if time.monotonic() - started > DEADLINE_SECONDS:
                    raise CheckError(f"no checkpoint after {DEADLINE_SECONDS:g} s")
                time.sleep(0.005)
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def _start_ranks(self, ranks: int, arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
        """Start ranks without a launcher, which would add its own output and survive the kill."""
        self._runs += 1
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = str(listener.getsockname()[1])
        world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": port}
        variables = [
            {"RANK": str(n), "LOCAL_RANK": str(n), "MASTER_ADDR": "127.0.0.1", **world}
            for n in range(ranks)
        ]
        return [self._start(own["RANK"], (), arguments, own) for own in variables]

    def _start(
        self,
        rank: str,
        launcher: Sequence[str],
        arguments: Sequence[str],
        variables: Mapping[str, str],
        program: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """Start `program` or, if it is empty, the training program on the table."""
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        inherited = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SM_", "MASTER_", "OMPI_", "PYTHON"))
        }
        places = {"SM_MODEL_DIR": "model", "SM_OUTPUT_DATA_DIR": "data", "SM_INPUT_DIR": "input"}
        program = program or (str(IMAGE / "train.py"), "--data", str(self._table()))
        with (folder / f"stderr-{rank}").open("w") as errors:
            return subprocess.Popen(
                [str(self._python), *launcher, *program, *arguments],
                env={
                    **inherited,
                    **{name: str(folder / place) for name, place in places.items()},
                    "OMP_NUM_THREADS": "1",
                    **variables,
                },
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )

    def scratch(self, name: str) -> Path:
        """Return an unused path that the next trainings can share."""
        return self._scratch / f"{name}-{self._runs}"

    def _folder(self) -> Path:
        return self._scratch / f"run-{self._runs}"

    def _stderr(self, rank: int = 0) -> str:
        return (self._folder() / f"stderr-{rank}").read_text(errors="replace")

    def _said(self) -> str:
        return " | ".join(self._stderr().strip().splitlines()[-4:])[-600:]

    def _table(self) -> Path:
        """Return the folder of a fixed table of 1,500 rows of 64 pixels in three classes."""
        folder = self._scratch / "table"
        if not folder.exists():
            random = np.random.default_rng(0)
            label = random.integers(0, 3, 1500)
            pixels = random.normal(size=(1500, 64)) + label[:, None] * 0.5
            columns = {f"pixel_{i}": pixels[:, i].astype(np.float32) for i in range(64)}
            folder.mkdir(parents=True)
            pq.write_table(pa.table({**columns, "label": label}), folder / "table.parquet")
        return folder


class CheckError(Exception):
    """A check did not end as expected; the message gives its result."""


def _wait(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun forwards the signal to its ranks
        process.wait(60)
        raise CheckError(f"still running after {DEADLINE_SECONDS:g} s") from None


def plan_checks(
    trainer: Trainer, container: Container
) -> list[tuple[str, str, Callable[[], str | None]]]:
    """Return (name, expected outcome, function) of every check of one environment."""
    trains, resumes = partial(_trains, trainer, container), partial(_resumes, trainer, container)
    checks: list[tuple[str, str, Callable[[], str | None]]] = [
        (
            "1 rank, resnet18, sgd",
            "ok",
            partial(trains, 1, "--max-steps", "2", "--model", "resnet18", *SGD),
        ),
        ("1 rank, adam", "ok", partial(trains, 1, *QUICK, "--optimizer", "adam")),
        ("2 ranks, unmodified script", "ok", partial(_measures, trainer, 2)),
    ]
    for strategy in ("ddp", "fsdp"):
        asked = (*QUICK, "--strategy", strategy)
        if strategy == "fsdp" and release(container.torch) < FIRST_RELEASE[FSDP2_ON_CPUS]:
            checks.append(("2 ranks, fsdp", "refused", partial(trainer.refusal, *asked, ranks=2)))
            continue
        checks.append(
            (
                f"2 ranks over gloo, killed and resumed, {strategy}",
                "ok",
                partial(resumes, 2, *asked),
            )
        )
    for option in (("--strategy", "smp"), ("--backend", "smddp"), ("--backend", "xla")):
        # The library of a backend is loaded only with more than one rank.
        ranks = 2 if option[1] == "xla" else 1
        name = f"{ranks} rank{'s' if ranks > 1 else ''}, {option[1]}"
        checks.append((name, "refused", partial(trainer.refusal, *option, ranks=ranks)))
    return checks


def _check(name: str, expected: str, work: Callable[[], str | None]) -> Check:
    started = time.monotonic()
    try:
        reason, outcome = work(), expected
    except (CheckError, OSError, ValueError, KeyError) as error:
        reason, outcome = str(error), "failed"
    check = Check(name, outcome, expected, round(time.monotonic() - started, 1), reason)
    print(
        f"  {check.outcome:8}{check.seconds:7.1f} s  {name}{f': {reason}' if reason else ''}",
        flush=True,
    )
    return check


def _trains(trainer: Trainer, container: Container, ranks: int, *arguments: str) -> None:
    _judge(trainer.train(*arguments, ranks=ranks), container, ranks)


def _judge(metrics: Mapping[str, Any], container: Container, ranks: int) -> None:
    found = (
        metrics["world"]["world_size"],
        metrics["versions"]["torch"].split("+")[0],
        metrics["world"]["backend"],
    )
    if found != (expected := (ranks, container.torch, "gloo" if ranks > 1 else None)):
        raise CheckError(f"world size, torch and backend: {found}, expected {expected}")
    if not 0 < metrics["final_metric"]["value"] <= 1:
        raise CheckError(f"{metrics['steps']} steps, {metrics['final_metric']}")


def _measures(trainer: Trainer, ranks: int) -> None:
    """Check that a script without a clock is measured within 2% of its own stopwatch."""
    metrics, stopwatch_seconds = trainer.measure(UNMODIFIED, ranks)
    if "train_seconds" not in metrics:
        raise CheckError(f"not measured: {metrics['observed']}")
    seconds = metrics["train_seconds"]
    if abs(seconds - stopwatch_seconds) > 0.02 * stopwatch_seconds:
        raise CheckError(f"measured {seconds:.4f} s, but the stopwatch {stopwatch_seconds:.4f} s")
    counted = metrics["world"]["world_size"], metrics["steps"], metrics["samples"]["processed"]
    if counted != (ranks, 512 // ranks, 4 * 4096):
        raise CheckError(f"world size, steps and samples: {counted}")


def _resumes(trainer: Trainer, container: Container, ranks: int, *arguments: str) -> None:
    """Check that a training killed at a checkpoint and restarted runs the remaining steps only."""
    folder = trainer.scratch("checkpoints")
    asked = (*arguments, "--checkpoint-dir", str(folder), "--checkpoint-every-steps", "5")
    trainer.interrupt(folder / "last.ckpt", *asked, ranks=ranks)
    metrics = trainer.train(*asked, ranks=ranks)
    _judge(metrics, container, ranks)
    at = metrics["resumed_at_step"] or 0
    done = (metrics["interruptions"], metrics["steps"], len(metrics["step_seconds"]))
    if at == 0 or done != (1, STEPS, STEPS - at):
        raise CheckError(f"resumed at {at}; interruptions, steps, steps since then: {done}")


def install(container: Container, uv: str) -> Path:
    """Create the environment, or reuse an existing one, and return its Python."""
    folder = ENVIRONMENTS / f"torch-{container.torch}"
    python = folder / "bin" / "python"
    if not python.exists():
        _call(uv, "venv", "--quiet", "--python", find_python(container.python), str(folder))
    pip = (uv, "pip", "install", "--quiet", "--no-cache", "--python", str(python))
    torch = f"torch=={container.torch}"
    # tensorboardX needs protobuf, which in a container comes with the SageMaker toolkit
    _call(*pip, torch, container.numpy, "protobuf")
    _call(*pip, "--no-deps", "--require-hashes", "--requirement", str(LOCK))
    _call(*pip, torch, "pytorch-lightning")
    return python


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_DEADLINE_SECONDS)
    if done.returncode:
        raise CheckError(f"{' '.join(command[:3])}: {done.stderr.strip()[-600:]}")


def find_python(minor: str) -> str:
    """Return pyenv's interpreter of a version, or else the version for uv to find.

    pyenv's shims run enabled versions only. glob() skips an unreadable folder; Path.glob() raises.
    """
    root = os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")
    return min(glob.glob(f"{root}/versions/{minor}.*/bin/python"), default=minor)


VERSIONS = """
import json, platform
from importlib.metadata import version
packages = ("torch", "pytorch-lightning", "numpy", "pyarrow", "torchmetrics", "tensorboardX")
import sys; sys.path.insert(0, sys.argv[1])
from training.imports import import_lightning
import_lightning()
import training.run, training.wrap
versions = {name: version(name) for name in packages}
print(json.dumps({"python": platform.python_version(), **versions}))
"""


def try_release(container: Container, uv: str, keep: bool) -> dict[str, Any]:
    """Test one release and return the results; delete its environment unless `keep`."""
    print(f"PyTorch {container.torch}, Python {container.python}", flush=True)
    started = time.monotonic()
    scratch = ENVIRONMENTS / f"runs-{container.torch}"
    shutil.rmtree(scratch, ignore_errors=True)
    versions: dict[str, str] = {}

    def imports() -> None:
        command = [str(python), "-c", VERSIONS, str(IMAGE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        if done.returncode:
            raise CheckError(" | ".join(done.stderr.strip().splitlines()[-3:]))
        versions.update(json.loads(done.stdout.splitlines()[-1]))

    try:
        python = install(container, uv)
        installed = time.monotonic() - started
        checks = [_check("import", "ok", imports)]
        checks += [_check(*planned) for planned in plan_checks(Trainer(python, scratch), container)]
    except (CheckError, subprocess.TimeoutExpired) as error:
        installed = time.monotonic() - started
        checks = [Check("install", "failed", "ok", round(installed, 1), str(error))]
        print(f"  failed   install: {error}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if not keep:
            shutil.rmtree(ENVIRONMENTS / f"torch-{container.torch}", ignore_errors=True)
    outcome = "ok" if all(check.outcome == check.expected for check in checks) else "failed"
    return {
        "outcome": outcome,
        "versions": versions,
        "install_seconds": round(installed, 1),
        "program": program_digest(),
        "checks": [asdict(check) for check in checks],
    }


def program_digest() -> str:
    """Return a digest of the training program and of its lock file."""
    digest = sha256()
    for path in (
        IMAGE / "train.py",
        IMAGE / "nodesweep_measure.py",
        LOCK,
        *sorted((IMAGE / "training").rglob("*.py")),
    ):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def store(output: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Merge `results` into those of `output`; a release without a result is "not run"."""
    earlier = json.loads(output.read_text())["releases"] if output.exists() else {}
    known = {
        version: entry
        for version, entry in {**earlier, **results}.items()
        if entry["outcome"] != "not run"
    }
    releases = {c.torch: known.get(c.torch, {"outcome": "not run"}) for c in CONTAINERS}
    machine = {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": None,
    }
    whole = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine,
        "releases": releases,
    }
    write_atomic(output, pretty_json(whole), SHARED)
    return whole


def table(releases: Mapping[str, Any]) -> str:
    """Format the results as the table in the image's README."""
    lines = ["| PyTorch | Python | NumPy | ddp | fsdp |", "|---|---|---|---|---|"]
    for version in (container.torch for container in CONTAINERS):
        entry = releases[version]
        held = entry.get("versions", {})
        ddp = fsdp = {"ok": "ran"}.get(entry["outcome"], entry["outcome"])
        if release(version) < FIRST_RELEASE[FSDP2_ON_CPUS]:
            fsdp = "refused" if entry["outcome"] == "ok" else entry["outcome"]
        lines.append(
            f"| {version} | {held.get('python', '')} | {held.get('numpy', '')} | {ddp} | {fsdp} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Test, then print and store the result."""
    options = _parse(argv)
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        print("uv is missing: make setup installs it", file=sys.stderr)
        return 2
    results: dict[str, Any] = {}
    for container in CONTAINERS:
        if container.torch in options.versions:
            results[container.torch] = try_release(container, uv, options.keep)
            store(options.output, results)
    print(table(json.loads(options.output.read_text())["releases"]))
    return 0 if all(result["outcome"] == "ok" for result in results.values()) else 1


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    every = [container.torch for container in CONTAINERS]
    today = RESULTS / f"training_matrix-{time.strftime('%Y-%m-%d', time.gmtime())}.json"
    parser = argparse.ArgumentParser(
        description="Run the training program on every PyTorch release."
    )
    parser.add_argument(
        "--versions",
        nargs="+",
        choices=every,
        default=every,
        metavar="VERSION",
        help=", ".join(every),
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the environments (1 to 6 GB each) for later runs",
    )
    parser.add_argument(
        "--output", type=Path, default=today, help="where to store the result (JSON)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
