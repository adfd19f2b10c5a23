"""Image builds with a tiny package, so that nothing is downloaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.local.tests.engine.process.image_builds import WHEEL, build, hash_of, write_wheel
from sagemaker_emulator.engine.process import installer
from sagemaker_emulator.engine.process.dockerfile import parse
from sagemaker_emulator.engine.process.image_content import (
    _referred_paths,
    read_content,
    requirement_lines,
)
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from sagemaker_emulator.interfaces import ImageBuildError
from sagemaker_emulator.process_identity import start_ticks

ROOT = Path(__file__).resolve().parents[5]

DOCKERFILE = """
FROM python:3.11
COPY requirements.txt *.whl /tmp/build/
RUN pip install -r /tmp/build/requirements.txt
COPY . /opt/ml/code/
COPY lib /opt/own/lib
ENV PROGRAM=train.py PYTHONPATH=/opt/elsewhere:/opt/own
WORKDIR /opt/own
LABEL kind=tiny
"""
DIST_INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: tinytrain\nVersion: 1.0\n",
    "WHEEL": WHEEL,
    "RECORD": "",
    "entry_points.txt": "[console_scripts]\ntrain = tinytrain:main\n",
}


@pytest.fixture
def context(tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tinytrain-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinytrain.py", "def main():\n    print('tiny')\n")
        for name, text in DIST_INFO.items():
            wheel.writestr(f"tinytrain-1.0.dist-info/{name}", text)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "requirements.txt").write_text("./tinytrain-1.0-py3-none-any.whl  # local\n")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "lib").mkdir()
    (folder / "lib" / "one.py").write_text("")
    (folder / ".dockerignore").write_text("# not for nodes\nnotes*\nDockerfile\n")
    (folder / "notes.txt").write_text("private")
    return folder


@pytest.fixture
def hashed(context):
    """The same context with a hash of the package, so that uv installs it in a tenth of the time.

    pip starts twice otherwise: to print its configuration, and to install.
    """
    wheel = context / "tinytrain-1.0-py3-none-any.whl"
    (context / "requirements.txt").write_text(f"tinytrain==1.0 {hash_of(wheel)}\n")
    links = f"ARG UV_NO_INDEX=1 UV_FIND_LINKS={context}\nCOPY requirements.txt"
    dockerfile = DOCKERFILE.replace("COPY requirements.txt *.whl", links)
    (context / "Dockerfile").write_text(dockerfile)
    return context


makes_no_environment = pytest.mark.usefixtures("copied_environments")


@pytest.fixture
def unconfigured_pip(monkeypatch):
    """Keep this machine's configuration from pip."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


@makes_no_environment
def test_build_run_resolve(store, context, unconfigured_pip):
    lines = []
    image = build(store, context, on_line=lines.append)
    folder = store.resolve("123456789012.dkr.ecr.us-east-1.amazonaws.com/tiny:1")
    assert folder == store.resolve(f"localhost:5000/tiny@{image.digest}")
    assert image.labels == {"kind": "tiny"}
    assert subprocess.check_output([folder / "venv/bin/train"], text=True) == "tiny\n"
    assert (folder / "code/train.py").read_text() == "print(1)\n"
    assert not (folder / "code/notes.txt").exists()
    assert [str(path.relative_to(folder)) for path in folder.glob("files/**/*.py")] == [
        "files/opt/own/lib/one.py"
    ]
    record = json.loads((folder / "image.json").read_text())
    assert record["environment"] == {"PROGRAM": "train.py", "PYTHONPATH": "/opt/elsewhere:/opt/own"}
    assert record["folder"] == "/opt/own"
    assert store.images() == [("tiny", "1", image.digest)]
    assert lines[0].startswith("[READ Dockerfile] FROM python:3.11: ")
    log = "\n".join(lines)
    assert "./tinytrain-1.0" in log and str(context.parent) not in log
    assert "[INSTALL requirements with uv]" in lines and "[INSTALL requirements]" not in lines


@makes_no_environment
def test_code_change_keeps_the_environment_but_not_the_digest_or_the_tag(store, hashed, tmp_path):
    first = build(store, hashed)
    copied = shutil.copytree(hashed, tmp_path / "elsewhere")
    os.utime(copied / "train.py", (0, 0))
    (copied / "__pycache__").mkdir()
    (copied / "__pycache__" / "train.pyc").write_text("x")
    assert build(store, copied) == first

    (hashed / "train.py").write_text("print(2)\n")
    with pytest.raises(ImageBuildError, match="immutable"):
        build(store, hashed)
    lines = []
    second = build(store, hashed, tag="2", on_line=lines.append)
    assert second.digest != first.digest
    assert any(line.startswith("[REUSE virtual environment]") for line in lines)
    assert [len(list(store._venvs.glob("*/complete.json"))), len(store.images())] == [1, 2]


@pytest.mark.parametrize(
    "uri", ["tiny:2", "other:1", "tiny@sha256:" + "0" * 64, "not an image", "tiny"]
)
def test_what_is_not_there_resolves_to_none(store, uri):
    assert store.resolve(uri) is None


HASHED = (
    "FROM python:3.11\nCOPY requirements.txt /tmp/r.txt\nRUN pip install --no-deps -r /tmp/r.txt\n"
)


@makes_no_environment
def test_hash_that_does_not_fit_is_refused_by_uv_and_by_pip_and_not_resolved(store, context):
    arguments = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(context),
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(context),
    }
    (context / "Dockerfile").write_text(HASHED)
    (context / "requirements.txt").write_text(
        f"tinytrain==1.0 {hash_of(context / 'tinytrain-1.0-py3-none-any.whl')}\n"
    )
    lines = []
    build(store, context, on_line=lines.append, **arguments)
    assert "[INSTALL requirements]" not in lines  # uv took it
    (context / "requirements.txt").write_text(f"tinytrain==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ImageBuildError, match=r"(?s)INSTALL requirements .* 1\..*DO NOT MATCH"):
        build(store, context, tag="2", **arguments)
    assert [tag for _, tag, _ in store.images()] == ["1"]
    assert store.resolve("tiny:2") is None


UNHASHED = HASHED.replace("--no-deps ", "")


@makes_no_environment
def test_a_private_package_is_not_taken_from_the_public_index(
    store, context, tmp_path, monkeypatch, unconfigured_pip
):
    """uv does not read pip's configuration, so it would install a newer package that a stranger has
    published (dependency confusion).
    """
    private, public = tmp_path / "private", tmp_path / "public"
    for folder, version in ((private, "1.0"), (public, "9.0")):
        folder.mkdir()
        write_wheel(folder, "ourlib", version)
    arguments = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(public)}  # what uv would use on its own
    conf = tmp_path / "pip.conf"
    conf.write_text(f"[install]\nfind-links = {private}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    dockerfile = UNHASHED.replace("COPY", "ENV PIP_NO_INDEX=1\nCOPY", 1)
    (context / "Dockerfile").write_text(dockerfile)
    (context / "requirements.txt").write_text("ourlib\n")
    build(store, context, **arguments)
    [module] = store.resolve("tiny:1").glob("venv/lib/python3*/site-packages/ourlib.py")
    assert module.read_text() == "version = '1.0'\n"


@pytest.mark.parametrize(
    ("line", "chooses"),
    [
        (":env:.no-index='1'", True),
        ("install.find-links='/private'", True),
        ("global.index-url='https://private'", True),
        ("global.timeout='60'", False),
    ],
)
def test_lines_of_pips_configuration_that_choose_the_source(line, chooses):
    assert bool(installer._PIP_CHOOSES.match(line)) is chooses


def test_installers_see_the_dockerfiles_own_settings_as_its_run_does(tmp_path):
    text = "FROM a\nARG PIP_INDEX_URL=http://a\nARG PIP_TIMEOUT=5\nENV PIP_TIMEOUT=9\nENV OTHER=1\n"
    recipe = parse(text, {"PIP_INDEX_URL": "http://b"})
    content = read_content(tmp_path, recipe, {"PIP_INDEX_URL": "http://b", "UV_OFFLINE": "1"})
    assert content.installer_arguments == {
        "PIP_INDEX_URL": "http://b",
        "PIP_TIMEOUT": "9",
        "UV_OFFLINE": "1",
    }


@makes_no_environment
def test_torch_is_what_pip_chooses_and_then_its_hash_is_checked(store, context, tmp_path):
    """The +cpu wheel matches `torch==1.0` and is newer, but only the link of the other wheel has a
    hash.
    """
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    cuda = write_wheel(tmp_path, "torch", "1.0", "Requires-Dist: cudalibrary\n")
    fragment = hash_of(cuda).removeprefix("--hash=").replace(":", "=")
    link = f'<a href="{cuda.as_uri()}#{fragment}">{cuda.name}</a>'
    (tmp_path / "index.html").write_text(link)
    write_wheel(wheels, "torch", "1.0+cpu")
    pinned = f"torch==1.0 \\\n    {hash_of(cuda)} \\\n    "
    found = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": f"{tmp_path / 'index.html'} {wheels}",
        "UV_OFFLINE": "1",
    }
    (context / "Dockerfile").write_text(HASHED)
    (context / "requirements.txt").write_text(f"{pinned}--hash=sha256:{'1' * 64}\n")
    with pytest.raises(ImageBuildError, match=r"torch-1\.0\+cpu-"):
        build(store, context, **found)


@makes_no_environment
def test_half_an_environment_is_made_anew(store, hashed):
    content = build(store, hashed)
    [complete] = store._venvs.glob("*/complete.json")
    complete.unlink()
    shutil.rmtree(complete.parent / "lib")
    shutil.rmtree(store._images)
    assert build(store, hashed) == content
    assert (
        subprocess.check_output([store.resolve("tiny:1") / "venv/bin/train"], text=True) == "tiny\n"
    )


@makes_no_environment
def test_a_moved_store_is_built_anew(store, hashed, tmp_path):
    build(store, hashed)
    moved = ProcessImageStore((tmp_path / "state").rename(tmp_path / "moved"))
    assert moved.resolve("tiny:1") is None
    build(moved, hashed)
    assert (
        subprocess.check_output([moved.resolve("tiny:1") / "venv/bin/train"], text=True) == "tiny\n"
    )


@makes_no_environment
def test_environments_in_another_folder_by_a_link_are_whole(hashed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "venvs").symlink_to(tmp_path / "elsewhere")
    store = ProcessImageStore(tmp_path / "state")
    build(store, hashed)
    assert store.resolve("tiny:1") is not None


@makes_no_environment
def test_concurrent_builds_of_the_same_thing(store, hashed):
    lines = []
    with ThreadPoolExecutor(2) as pool:
        images = list(
            pool.map(lambda tag: build(store, hashed, tag=tag, on_line=lines.append), ["1", "2"])
        )
    assert images[0] == images[1]
    assert lines.count("[MAKE virtual environment]") == 1
    assert {tag for _, tag, _ in store.images()} == {"1", "2"}


def test_stop_and_deadline(store, context):
    stop = threading.Event()
    with pytest.raises(ImageBuildError, match="was stopped"):
        build(
            store, context, on_line=lambda line: stop.set() if "MAKE" in line else None, stop=stop
        )
    with pytest.raises(ImageBuildError, match="timed out"):
        build(store, context, seconds=0.3)
    assert store.images() == []


KILLED_BUILDER = """
import os, sys, threading, time
from pathlib import Path
from sagemaker_emulator.engine.process.build_run import BuildRun, build_lock
from sagemaker_emulator.engine.process.installer import installer_environment
venvs = Path(sys.argv[1])
run = BuildRun(lambda line: print(line, flush=True), threading.Event(), time.monotonic() + 600)
with build_lock(venvs / "x.lock", run) as lock_fd:
    compiler = "setsid sleep 600 & echo compiler $!; wait"
    run.command("INSTALL", ["sh", "-c", compiler], installer_environment({}, venvs), venvs, lock_fd)
"""


def test_compilers_of_a_killed_builder_are_ended_and_those_of_a_live_one_are_not(store):
    """The compilers are not children of the server.

    When the server ends, the kernel kills pip, but not the processes that pip has started.
    """
    command = [sys.executable, "-c", KILLED_BUILDER, str(store._venvs)]
    builder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert builder.stdout is not None
        compiler = int(
            next(line for line in builder.stdout if line.startswith("compiler")).split()[1]
        )
        ProcessImageStore(store._venvs.parent)
        assert start_ticks(compiler) is not None
    finally:
        builder.kill()
        builder.wait()
        builder.stdout.close()
    assert start_ticks(compiler) is not None
    ProcessImageStore(store._venvs.parent)
    assert start_ticks(compiler) is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("COPY nowhere.py /opt/ml/code/", r"nowhere\.py .*build context"),
        ("COPY notes.txt /opt/ml/code/", r"\.dockerignore"),
        ("COPY train.py /usr/bin/", "nodes only see /opt/ml/code"),
        (
            "ENV MODEL=/opt/ml/model\nCOPY train.py /opt/ml/model/",
            "nodes only see /opt/ml/code",
        ),
        (
            "ENV PATH=/usr/bin:/ ROOT=/\nCOPY train.py /usr/bin/",
            "nodes only see /opt/ml/code",
        ),
        ("RUN pip install -r /elsewhere.txt", "no earlier COPY"),
    ],
)
def test_contexts_that_do_not_fit(store, context, change, complaint):
    with (context / "Dockerfile").open("a") as file:
        file.write(change + "\n")
    with pytest.raises(ImageBuildError, match=complaint):
        build(store, context)


@pytest.mark.parametrize(
    ("copy", "placed"),
    [
        ("*.py /opt/ml/code/", {"train.py": "train.py"}),
        ("*.py /opt/ml/code/main.py", {"main.py": "train.py"}),
        ("*/train.py /opt/ml/code/", {"train.py": "lib/train.py"}),
        ("li* /opt/ml/code/", {"train.py": "lib/train.py", "sub/a.py": "lib/sub/a.py"}),
        ("l?b/s* /opt/ml/code/sub", {"sub/a.py": "lib/sub/a.py"}),
        ("./lib/sub/ /opt/ml/code/sub", {"sub/a.py": "lib/sub/a.py"}),
        ("/lib/sub/a.py /opt/ml/code/", {"a.py": "lib/sub/a.py"}),
    ],
)
def test_copies_match_and_place_files_as_docker_does(tmp_path, copy, placed):
    for name in ("train.py", "lib/train.py", "lib/sub/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    files = read_content(tmp_path, parse(f"FROM a\nCOPY {copy}\n", {}), {}).files
    assert {name: str(path.relative_to(tmp_path)) for name, path in files.items()} == {
        f"code/{name}": source for name, source in placed.items()
    }


@pytest.mark.parametrize("requirement", ["-r more.txt", "./absent-1.0-py3-none-any.whl"])
def test_messages_name_no_folder_of_this_machine(store, context, requirement):
    """Users of CodeBuild see the messages."""
    (context / "requirements.txt").write_text(f"{requirement}\n")
    with pytest.raises(ImageBuildError, match="build context") as raised:
        build(store, context)
    assert str(context) not in str(raised.value)
    (context / "Dockerfile").write_text("FROM python:3.11\nCOPY none.txt /opt/ml/code/\n")
    with pytest.raises(ImageBuildError, match=r"none\.txt ") as raised:
        build(store, context)
    assert str(context) not in str(raised.value)


def test_build_args_of_installers_and_requirements_make_the_environments_name(context):
    from sagemaker_emulator.engine.process.dockerfile import parse

    def venv_digest(**build_args):
        return read_content(context, parse(DOCKERFILE, build_args), build_args).venv_digest

    plain = venv_digest()
    assert venv_digest(OTHER="x") == plain
    assert venv_digest(PIP_EXTRA_INDEX_URL="https://example.org") != plain
    with zipfile.ZipFile(context / "tinytrain-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("more.py", "")
    assert venv_digest() != plain


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_requirements_are_read_as_pip_does(tmp_path, encoding):
    text = "# one \\\n-r 'my more.txt'\r\ntimm \\\r\n  --hash=x # two \n"
    (tmp_path / "requirements.txt").write_bytes(text.encode(encoding))
    (tmp_path / "my more.txt").write_text("")
    assert requirement_lines(tmp_path / "requirements.txt") == [
        "-r 'my more.txt'",
        "timm   --hash=x",
    ]
    assert _referred_paths([tmp_path / "requirements.txt"]) == [
        (tmp_path / "requirements.txt", tmp_path / "my more.txt")
    ]


def layer_on(folder, image, requirement):
    """Return a build context that adds a package to an image in the store."""
    folder.mkdir()
    (folder / "Dockerfile").write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY requirements.txt"
        " /opt/packages/requirements.txt\nRUN python -m pip list --format=freeze | sed -nE"
        " '/^(tinytrain|torch)==/p' > /opt/packages/kept.txt\nRUN python -m pip install"
        " --no-cache-dir -c /opt/packages/kept.txt -r /opt/packages/requirements.txt\n"
    )
    (folder / "requirements.txt").write_text(f"{requirement}\n")
    return {"BASE_IMAGE": f"123456789012.dkr.ecr.us-east-1.amazonaws.com/tiny@{image.digest}"}


@makes_no_environment
def test_layer_on_an_image_of_the_store_has_all_of_it_and_leaves_it_as_it_is(
    store, hashed, tmp_path
):
    base = build(store, hashed)
    arguments = layer_on(tmp_path / "layer", base, write_wheel(tmp_path, "added", "1.0"))
    lines = []
    layered = build(store, tmp_path / "layer", "2", on_line=lines.append, **arguments)
    below, above = store.resolve("tiny:1"), store.resolve("tiny:2")
    assert "[COPY virtual environment]" in lines and "[MAKE virtual environment]" not in lines
    said = subprocess.check_output([above / "venv/bin/train"], text=True)
    assert (
        said == "tiny\n"
        and str(above.joinpath("venv").resolve()) in (above / "venv/bin/train").read_text()
    )
    for image, code in ((above, 0), (below, 1)):
        found = subprocess.run(
            [image / "venv/bin/python", "-c", "import tinytrain, added"], stderr=subprocess.PIPE
        )
        assert found.returncode == code, found.stderr
    records = [json.loads((image / "image.json").read_text()) for image in (below, above)]
    assert [records[1][key] for key in ("environment", "labels", "folder")] == [
        records[0][key] for key in ("environment", "labels", "folder")
    ]
    for kept in ("code/train.py", "files/opt/own/lib/one.py"):
        assert (above / kept).is_file()
    assert build(store, tmp_path / "layer", "2", **arguments) == layered


@makes_no_environment
def test_layer_replaces_a_package_for_itself_alone_and_none_that_is_held(store, hashed, tmp_path):
    """pip fails if it must replace a package that another package pins, and its last lines name
    both versions.
    """
    base = build(store, hashed)
    layer, newer = tmp_path / "layer", write_wheel(tmp_path, "tinytrain", "2.0")
    arguments = layer_on(layer, base, newer)
    with pytest.raises(
        ImageBuildError, match=r"(?s)INSTALL requirements .*\(constraint\) tinytrain==1\.0"
    ):
        build(store, layer, "2", **arguments)
    (layer / "Dockerfile").write_text((layer / "Dockerfile").read_text().replace("tinytrain|", ""))
    build(store, layer, "2", **arguments)
    for tag, version in (("1", "1.0"), ("2", "2.0")):
        python = store.resolve(f"tiny:{tag}") / "venv/bin/python"
        ask = "import importlib.metadata; print(importlib.metadata.version('tinytrain'))"
        assert subprocess.check_output([python, "-c", ask], text=True) == f"{version}\n"
    assert (
        subprocess.check_output([store.resolve("tiny:1") / "venv/bin/train"], text=True) == "tiny\n"
    )


@makes_no_environment
def test_files_on_an_image_of_the_store_take_its_environment(store, hashed, tmp_path):
    base = build(store, hashed)
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "other.py").write_text("")
    (tmp_path / "layer" / "Dockerfile").write_text(
        f"FROM localhost/tiny@{base.digest}\nENV MORE=${{PROGRAM}}\nCOPY other.py /opt/ml/code/\n"
    )
    build(store, tmp_path / "layer", "2")
    below, above = store.resolve("tiny:1"), store.resolve("tiny:2")
    assert (above / "venv").resolve() == (below / "venv").resolve()
    assert sorted(path.name for path in above.glob("code/*.py")) == ["other.py", "train.py"]
    assert json.loads((above / "image.json").read_text())["environment"]["MORE"] == "train.py"
