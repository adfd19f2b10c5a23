"""Every name and argument of torch and Lightning that the program uses exists in all supported
releases.

The wheels for macOS hold the same Python sources as those for Linux, in 60 to 130 MB instead of
gigabytes; they are read without unpacking and kept in .whl/. `make matrix` tests what only a
running program can show.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest
import yaml
from training.torch_versions import FIRST_RELEASE, FSDP2, FSDP2_ON_CPUS, FUSED_OPTIMIZERS, OLDEST

from benchmarks.training_matrix import CONTAINERS, release
from tests.infra.image.program_names import Use, find_problems, find_uses
from tests.infra.image.wheel_sources import Sources

REPOSITORY = Path(__file__).resolve().parents[3]
IMAGE, WHEELS = REPOSITORY / "infra" / "image", REPOSITORY / ".whl"
RELEASES = [container.torch for container in CONTAINERS]
MACOS = (
    "--platform",
    "macosx_14_0_arm64",
    "--python-version",
    "3.11",
    "--only-binary=:all:",
    "--no-deps",
)
DEADLINE_SECONDS = 600.0
MEASURED = (
    "optim.optimizer.register_optimizer_step_post_hook",
    "optim.optimizer.register_optimizer_step_pre_hook",
    "autograd.backward",
    "autograd.grad",
    "jit._builtins._register_builtin",
    "save",
    "distributed.Work.wait",
    "distributed._broadcast_coalesced",
    "utils.data.DataLoader.__iter__",
    "utils.data.dataloader._BaseDataLoaderIter.__next__",
    "cuda.is_initialized",
    "cuda.is_current_stream_capturing",
    "cuda.Event",
    "autograd.function.BackwardCFunction",
    "autograd.graph.Node.next_functions",
)


def program_uses() -> list[Use]:
    files = sorted(IMAGE.rglob("*.py"))
    return [
        use for path in files for use in find_uses(path.read_text(), str(path.relative_to(IMAGE)))
    ]


def wheel(requirement: str) -> Path:
    """Download a wheel once, completely or not at all."""
    package, version = requirement.split("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not (found := list(WHEELS.glob(pattern))):
        WHEELS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=WHEELS) as folder:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-cache-dir",
                *MACOS,
                "--dest",
                folder,
            ]
            done = subprocess.run(
                [*command, requirement], capture_output=True, text=True, timeout=DEADLINE_SECONDS
            )
            assert done.returncode == 0, done.stderr
            for path in Path(folder).glob("*.whl"):
                os.replace(path, WHEELS / path.name)
        found = list(WHEELS.glob(pattern))
    (path,) = found
    return path


def pinned(package: str) -> Path:
    """Return the wheel that the image adds to a container."""
    (requirement,) = re.findall(
        rf"^{package}==\S+", (IMAGE / "requirements-on-dlc.txt").read_text(), re.MULTILINE
    )
    return wheel(requirement)


def sources(version: str) -> Sources:
    return Sources(wheel(f"torch=={version}"), pinned("pytorch-lightning"))


@pytest.fixture(scope="module", params=RELEASES)
def of_release(request: pytest.FixtureRequest) -> tuple[str, Sources]:
    """Return a release and its sources, which are read once for all tests that check them."""
    return request.param, sources(request.param)


@cache
def imports_of_torch(path: Path) -> set[str]:
    """Return the names that a wheel's modules import from torch at their top level,
    unconditionally."""
    with zipfile.ZipFile(path) as archive:
        modules = [
            ast.parse(archive.read(name)) for name in archive.namelist() if name.endswith(".py")
        ]
    nodes = [
        node
        for module in modules
        for node in module.body
        if isinstance(node, ast.ImportFrom) and not node.level
    ]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    return {name for name in names if name.startswith("torch.")}


def test_the_releases_are_those_that_the_configs_name_and_all_between() -> None:
    minors = [release(version) for version in RELEASES]
    assert minors == [(2, minor) for minor in range(OLDEST[1], minors[-1][1] + 1)]
    configs = [
        *(REPOSITORY / "configs").glob("*.yaml"),
        *(REPOSITORY / "configs" / "examples").glob("*.yaml"),
    ]
    images = [(yaml.safe_load(path.read_text()) or {}).get("image") or {} for path in configs]
    bases = [image["base_image"] for image in images if "base_image" in image]
    named = {release(found[0]) for base in bases if (found := re.findall(r":(\d+\.\d+)", base))}
    assert len(named) >= 5
    assert named <= set(minors)


@pytest.mark.slow
def test_a_release_has_every_name_and_argument_that_the_program_uses(
    of_release: tuple[str, Sources],
) -> None:
    version, read = of_release
    uses = program_uses()
    assert len({use.name for use in uses}) > 50
    assert find_problems(uses, read, release(version), FIRST_RELEASE) == []


@pytest.mark.slow
def test_a_release_has_what_the_measurement_of_a_script_uses(
    of_release: tuple[str, Sources],
) -> None:
    """nodesweep_measure.py and nodesweep_budget.py import nothing of torch, so that their uses are
    not found like the program's. They do without torch.compiler.is_compiling, new in torch 2.3.
    """
    _, read = of_release
    assert [name for name in MEASURED if read.find(f"torch.{name}") is None] == []


@pytest.mark.slow
def test_a_release_has_what_lightning_and_torchmetrics_import_from_it(
    of_release: tuple[str, Sources],
) -> None:
    _, read = of_release
    names = imports_of_torch(pinned("pytorch-lightning")) | imports_of_torch(pinned("torchmetrics"))
    assert len(names) > 50
    assert [name for name in sorted(names) if read.find(name) is None] == []


@pytest.mark.slow
def test_what_a_release_lacks_is_found() -> None:
    """The program is that of an earlier version, which ended immediately on these releases."""
    before = find_uses(
        "from torch.distributed.fsdp import fully_shard\nfully_shard(1, mesh=2)\n", "strategies.py"
    )
    fused = find_uses(
        "import torch\ntorch.optim.SGD([], 0.1, momentum=0.9, fused=True)\n", "module.py"
    )
    missing = "strategies.py:1: there is no torch.distributed.fsdp.fully_shard"
    for version in ("2.3.0", "2.5.1"):
        assert missing in find_problems(before, sources(version), release(version), {})
    assert find_problems(before, sources("2.6.0"), (2, 6), {}) == []
    assert find_problems(fused, sources("2.2.0"), (2, 2), {}) == [
        "module.py:2: torch.optim.SGD has no argument fused"
    ]
    assert find_problems(fused, sources("2.3.0"), (2, 3), {}) == []
    names = (
        "torch.nope",
        "torch.nn.Nope",
        "torch.distributed.nope",
        "torch.nn.Module.nope",
        "torch.nn.nope.x",
    )
    names = (*names, "pytorch_lightning.Nope", "pytorch_lightning.LightningModule.nope", "nope")
    assert [name for name in names if sources("2.14.1").find(name)] == []


@pytest.mark.slow
def test_the_table_of_first_releases_is_true(of_release: tuple[str, Sources]) -> None:
    """No release is named too late either, so that every existing feature is used."""
    version, read = of_release
    at = release(version)
    for name in (FSDP2, FSDP2_ON_CPUS):
        assert (read.find(name) is not None) == (at >= FIRST_RELEASE[name]), (name, version)
    helper = read.read("torch/utils/_foreach_utils.py")
    (devices,) = re.findall(
        r"def _get_fused_kernels_supported_devices.*?return \[(.*?)\]", helper, re.DOTALL
    )
    assert ('"cpu"' in devices) == (at >= FIRST_RELEASE[FUSED_OPTIMIZERS]), version
    if at >= FIRST_RELEASE[FUSED_OPTIMIZERS]:
        for name in ("SGD", "Adam", "AdamW"):
            optimizer = read.find(f"torch.optim.{name}")
            assert optimizer is not None
            assert read.takes(optimizer, 1, frozenset({"lr", "weight_decay", "fused"})) is None


@pytest.mark.slow
@pytest.mark.parametrize("python", sorted({container.python for container in CONTAINERS}))
def test_the_lock_for_containers_can_be_installed_on_their_python(
    python: str, tmp_path: Path
) -> None:
    """As the Dockerfile does it, wheels alone: a version that needs a later Python fails here, not
    in a build.
    """
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert uv is not None
    command = [
        uv,
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
    ]
    command += [
        "--python-version",
        python,
        "--python-platform",
        "x86_64-unknown-linux-gnu",
        "--target",
        str(tmp_path),
    ]
    lock = ["--requirement", str(IMAGE / "requirements-on-dlc.lock")]
    done = subprocess.run(
        [*command, *lock], capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0, done.stderr


PACKAGE = {
    "torch/__init__.py": (
        "from .deep import *\nfrom torch import deep as down\nfrom torch._C import Size\n"
        "if True:\n    from .deep import Base as B\n"
    ),
    "torch/deep.py": (
        "def call(a, *, b=1): ...\nclass Base:\n    def __init__(self, x): self.held = x\n"
        "class Child(Base):\n    def own(self, *args, **kw): ...\n"
    ),
    "torch/_C/__init__.pyi": "class Size: ...\ndef made(size: int, *, dtype: int = 0): ...\n",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    path = tmp_path_factory.mktemp("wheel") / "torch.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in PACKAGE.items():
            archive.writestr(name, text)
    return Sources(path)


@pytest.mark.parametrize(
    ("source", "problems"),
    [
        ("import torch\ntorch.call(1, b=2)", []),
        ("import torch\ntorch.call(1, c=2)", ["f.py:2: torch.call has no argument c"]),
        (
            "import torch\ntorch.call(1, 2)",
            ["f.py:2: torch.call takes 1 arguments by place, not 2"],
        ),
        ("import torch\ntorch.made(3, dtype=1)\ntorch.Size", []),
        ("import torch.deep as d\nd.Child(3).x\nd.Child.own", []),
        ("import torch\ntorch.down.Child(3, y=1)", ["f.py:2: torch.down.Child has no argument y"]),
        ("from torch import B, gone\nB(x=1)", ["f.py:1: there is no torch.gone"]),
        ("import torch\nx: torch.Gone", ["f.py:2: there is no torch.Gone"]),
        (
            (
                "import torch.deep as d\nclass M(d.Child):\n def f(s, self): self.held, self.mine\n"
                " mine: int"
            ),
            [],
        ),
        (
            "import torch.deep as d\nclass M(d.Child):\n def f(self): self.gone()",
            ["f.py:3: there is no torch.deep.Child.gone"],
        ),
        ("def f():\n from torch import late", []),
        (
            "from torch import late",
            ["f.py:1: torch.late is not in every release: ask for it where it is needed"],
        ),
        ("import json\njson.gone()\nfrom torch.sagemaker import init", []),
    ],
)
def test_what_is_seen(small: Sources, source: str, problems: list[str]) -> None:
    assert (
        find_problems(find_uses(source, "f.py"), small, (2, 3), {"torch.late": (2, 4)}) == problems
    )


def test_a_guarded_name_is_looked_for_from_its_first_release_on(small: Sources) -> None:
    uses = find_uses("def f():\n from torch import late", "f.py")
    assert find_problems(uses, small, (2, 4), {"torch.late": (2, 4)}) == [
        "f.py:2: there is no torch.late"
    ]
