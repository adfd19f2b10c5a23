"""Measure build time and transfer size of the training image with the emulated CodeBuild.

    .venv/bin/python benchmarks/image_build.py [--repeats 3] [--base-image NAME]
        [--output FILE.json]

The benchmark needs root, the requirements of the container engine (infra/local/README.md) and a
base image (infra/local/base_image.sh). On a separate platform with an empty registry, each case
does what a run does: read the context, look in ECR and, if the image is missing, send the context
and build the image.

    cold         only the base image's layers exist; "first" also pushes them into the empty
                 registry
    code change  one line in train.py changes
    no change    the context is the same as before
    touched      every file has another time and mode, but the same content

"sent" is the size of the context sent to S3, "pushed" the compressed size of the layers that the
registry lacked. Exit code 1 if an unchanged context is built again, or if a build after a changed
line takes more than --limit of the cold build's time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import ImageConfig, PlatformConfig
from nodesweep.launch.registry import backend_of
from nodesweep.scaling.names import pretty_json
from nodesweep.tasks.image.build import start_image_build, wait_for_image_build
from nodesweep.tasks.image.find import BuildContext, Images, find_image, read_context, zip_context
from sagemaker_emulator.engine.container.cli import ContainerCli
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running

IMAGE = Path(__file__).resolve().parents[1] / "infra" / "image"
BASE_IMAGE = "localhost/nodesweep-base:bookworm"
_REQUIREMENTS = "requirements-on-dlc.txt"
_COLD_TRIES = 2
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".mypy_cache")
_ROLE = "arn:aws:iam::000000000000:role/benchmark"
_MANIFEST = (
    "application/vnd.oci.image.manifest.v1+json,"
    " application/vnd.docker.distribution.manifest.v2+json"
)

LayerSizes = Callable[[str], Mapping[str, int]]
"""Function from an image URI to the compressed size in bytes of each layer, by digest."""


@dataclass(frozen=True)
class Measurement:
    """One measurement; `seconds` run from reading the context until the image's digest is known."""

    seconds: float
    built: bool
    build_seconds: float | None = None
    push_seconds: float | None = None
    sent_bytes: int = 0
    pushed_bytes: int = 0


class Bench:
    """A copy of the image's context, and the platform that builds the image."""

    def __init__(self, at: PlatformConfig, image: ImageConfig, layer_sizes: LayerSizes) -> None:
        self._at, self._image, self._layer_sizes = at, image, layer_sizes
        self._context = image.build_context
        self._known_layers: set[str] = set()
        self._changes = 0
        self.built: list[str] = []
        """Tags of the built images that remain on this machine."""

    def cases(self, repeats: int) -> Iterator[tuple[str, Measurement]]:
        """Run the cases in turn; yield each measurement with the name of its case."""
        yield "cold, first", self.measure()
        for _ in range(min(repeats, _COLD_TRIES)):
            self.change(_REQUIREMENTS)
            yield "cold", self.measure()
        for _ in range(repeats):
            self.change("train.py")
            yield "code change", self.measure()
        for _ in range(repeats):
            yield "no change", self.measure()
        for _ in range(repeats):
            self.touch()
            yield "touched", self.measure()

    def change(self, name: str) -> None:
        """Append a new comment line to a file of the context."""
        self._changes += 1
        with (self._context / name).open("a") as file:
            file.write(f"# change {self._changes}\n")

    def touch(self) -> None:
        """Change the time and mode of every file of the context, but not its content."""
        for path in self._context.rglob("*"):
            if path.is_file():
                path.chmod(path.stat().st_mode ^ 0o111)
                os.utime(path, (path.stat().st_atime + 60, path.stat().st_mtime + 60))

    def measure(self) -> Measurement:
        """Find or build the image as a run does, and measure it."""
        started = time.perf_counter()
        images, context = Images(backend_of(self._at), self._image), read_context(self._image)
        found = find_image(images, context)
        if found is not None:
            return Measurement(time.perf_counter() - started, built=False)
        build = start_image_build(images, context, f"{context.tag}-{time.time_ns()}")
        image = wait_for_image_build(images, context, build)
        seconds = time.perf_counter() - started
        self.built.append(f"{build.repository}:{context.tag}")
        return self._built(seconds, context, build.id, image.uri)

    def _built(self, seconds: float, context: BuildContext, build_id: str, uri: str) -> Measurement:
        phases = aws_client("codebuild", self._at).batch_get_builds(ids=[build_id])["builds"][0][
            "phases"
        ]
        took = {phase["phaseType"]: _phase_seconds(phase) for phase in phases if "endTime" in phase}
        layers = self._layer_sizes(uri)
        pushed = sum(size for digest, size in layers.items() if digest not in self._known_layers)
        self._known_layers |= set(layers)
        sent = len(zip_context(context))
        return Measurement(seconds, True, took.get("BUILD"), took.get("POST_BUILD"), sent, pushed)


def _phase_seconds(phase: Mapping[str, Any]) -> float:
    return float((phase["endTime"] - phase["startTime"]).total_seconds())


def summarise(tries: Sequence[tuple[str, Measurement]]) -> dict[str, Any]:
    """Return, by case, the median time, its ratio to the cold build, and every measurement."""
    by_case: dict[str, list[Measurement]] = {}
    for case, measurement in tries:
        by_case.setdefault(case, []).append(measurement)
    cold = median(each.seconds for each in by_case["cold"])
    return {
        case: {
            "built": [each.built for each in found],
            "median_seconds": (seconds := median(each.seconds for each in found)),
            "ratio_to_cold": seconds / cold,
            "sent_bytes": found[-1].sent_bytes,
            "pushed_bytes": found[-1].pushed_bytes,
            "tries": [asdict(each) for each in found],
        }
        for case, found in by_case.items()
    }


def problems(cases: Mapping[str, Any], limit: float) -> list[str]:
    """Return the reasons for exit code 1; an empty list if there is none."""
    found = [
        f"{case}: the image was built again"
        for case in ("no change", "touched")
        if any(cases[case]["built"])
    ]
    if (ratio := cases["code change"]["ratio_to_cold"]) > limit:
        found.append(f"code change: {ratio:.2f} of the cold build, above the limit of {limit:g}")
    return found


def table(cases: Mapping[str, Any]) -> str:
    """Format the summary as a table for the terminal."""
    lines = [f"{'case':<12}  {'n':>2}  {'median':>8}  {'of cold':>8}  {'sent':>10}  {'pushed':>13}"]
    for case, each in cases.items():
        lines.append(
            f"{case:<12}  {len(each['tries']):>2}  {each['median_seconds']:>6.2f} s "
            f" {each['ratio_to_cold']:>8.3f}  {each['sent_bytes']:>8,} B "
            f" {each['pushed_bytes']:>11,} B"
        )
    return "\n".join(lines)


@contextmanager
def own_platform(state_dir: Path) -> Iterator[PlatformConfig]:
    """Run a separate platform with the container engine and an empty registry."""
    config = ServerConfig(0, state_dir, engine="container")
    with running(config) as endpoint:
        at = PlatformConfig(
            region="us-east-1",
            bucket="benchmark",
            role_arn=_ROLE,
            endpoint_url=endpoint,
            credentials="platform",
            state_directory=str(state_dir),
            create_missing=True,
        )
        aws_client("s3", at).create_bucket(Bucket=at.bucket)
        yield at


def registry_layers(uri: str) -> dict[str, int]:
    """Return the size in bytes of each layer of REGISTRY/NAME@DIGEST, by digest."""
    registry, _, rest = uri.partition("/")
    name, _, digest = rest.partition("@")
    request = urllib.request.Request(
        f"http://{registry}/v2/{name}/manifests/{digest}", headers={"Accept": _MANIFEST}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        manifest = json.load(answer)
    return {layer["digest"]: layer["size"] for layer in manifest["layers"]}


def image_sizes(cli: ContainerCli, base_image: str, layers: Mapping[str, int]) -> dict[str, Any]:
    """Return the size of the base image on disk, and the sizes of the image's layers."""
    base_bytes = int(cli.call("image", "inspect", "--format", "{{.Size}}", base_image))
    return {"base_on_disk_bytes": base_bytes, "layers_compressed_bytes": list(layers.values())}


def describe_machine(cli: ContainerCli) -> dict[str, Any]:
    """Return the machine and the versions on which the numbers were measured."""
    return {
        "platform": (
            "local platform, container engine on one machine, whose loopback serves the registry"
        ),
        "builder": cli.call("--version").strip(),
        "cores": os.cpu_count(),
        "load_average_1_minute": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def main(argv: Sequence[str]) -> int:
    """Measure, then print and store the result."""
    options = _parse(argv)
    with tempfile.TemporaryDirectory(prefix="image-build-") as scratch:
        folder = Path(scratch)
        context = folder / "context"
        shutil.copytree(IMAGE, context, ignore=_LEFT_OUT)
        cli = ContainerCli.find(folder / "settings")
        if cli is None:
            print("neither podman nor docker is on PATH", file=sys.stderr)
            return 2
        image = ImageConfig(
            context=str(context),
            base_image=options.base_image,
            build_args={"REQUIREMENTS": _REQUIREMENTS},
        )
        layers: list[Mapping[str, int]] = []

        def layer_sizes(uri: str) -> Mapping[str, int]:
            layers.append(registry_layers(uri))
            return layers[-1]

        with own_platform(folder / "platform") as at:
            bench = Bench(at, image, layer_sizes)
            # This machine may still have layers of an earlier benchmark, but has none of a context
            # with the present time in it.
            with (context / _REQUIREMENTS).open("a") as file:
                file.write(f"# {time.time_ns()}\n")
            try:
                cases = summarise(list(bench.cases(options.repeats)))
            finally:
                if bench.built:
                    cli.call("image", "rm", "--force", *bench.built)
        sizes = image_sizes(cli, options.base_image, layers[-1])
        machine = describe_machine(cli)
    print(table(cases))
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine,
        "image": sizes,
        "cases": cases,
    }
    if options.output:
        options.output.write_bytes(pretty_json(result))
    for problem in (found := problems(cases, options.limit)):
        print(problem)
    return 1 if found else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure how long builds of the training image take and how much they send."
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="builds per case, but at most two cold builds"
    )
    parser.add_argument(
        "--base-image", default=BASE_IMAGE, help="base image, pulled if it is not on this machine"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=0.5,
        help="maximum time of a build after a changed line, as a share of the cold build",
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
