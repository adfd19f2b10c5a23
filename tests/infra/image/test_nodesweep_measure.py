"""The measurement of an unmodified script: its output, and that the script is otherwise unaffected.

Most tests run a script with a fake torch of a few lines; those with the image's torch are slow.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from nodesweep_measure import Watch

from tests.infra.image.training.processes import IMAGE

SCHEMA = json.loads((IMAGE.parents[1] / "docs" / "metrics.schema.json").read_text(encoding="utf-8"))
DEADLINE_SECONDS = 900
# The port is one that torchrun finds free: one of our choice may be taken until its second run.
TORCHRUN = (
    *("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
    "--nproc-per-node=2",
)
# With this torch, a script's clock moves by what the script sleeps, and a little with each look, so
# that no delay of a busy machine is measured. It sleeps at most 10 ms, so that other threads run.
TORCH = {
    "__init__.py": """
        import os, time
        now, sleep = 1000.0, time.sleep
        def spend(seconds):
            global now
            now += seconds
            sleep(min(seconds, 0.01))
        def look():
            global now
            now += 1e-10
            return now
        time.sleep, time.perf_counter = spend, look
        __version__ = os.environ.get("TORCH", "2.13.0")
        from torch import compiler, cuda, distributed, optim, utils
        import torch.utils.data
    """,
    "compiler.py": """
        compiling = False
        def is_compiling(): return compiling
    """,
    "cuda.py": """
        import time
        on, capturing, ahead, synchronized = False, False, 0.0, 0
        def is_available(): return on
        def is_initialized(): return on
        def is_current_stream_capturing(): return capturing
        def synchronize():
            global synchronized
            synchronized += 1
        class Event:
            def __init__(self, enable_timing): assert enable_timing
            def record(self): self.at = time.perf_counter() + ahead
            def synchronize(self): pass
            def elapsed_time(self, other): return (other.at - self.at) * 1000
    """,
    "distributed.py": """
        import os
        def is_available(): return True
        def is_initialized(): return "WORLD" in os.environ
        def get_world_size(): return int(os.environ["WORLD"])
        def get_rank(): return int(os.environ.get("RANK", 0))
    """,
    "optim/__init__.py": "from torch.optim.optimizer import SGD; del optimizer",
    "optim/optimizer.py": """
        import os
        hooks = {}
        if not os.environ.get("TORCH", "2").startswith("1."):
            def register_optimizer_step_post_hook(hook):
                hooks[0] = hook
        class SGD:
            def step(self):
                for hook in hooks.values():
                    assert hook(self, (self,), {}) is None
    """,
    "utils/__init__.py": "",
    "utils/data.py": """
        import types
        class Tensor:
            def __init__(self, n): self.shape = (n, 3)
        class Iterator:
            def __init__(self, loader): self.sizes = iter(loader.sizes)
            def __iter__(self): return self
            def __next__(self): return {"pixels": [Tensor(next(self.sizes))]}
        class DataLoader:
            def __init__(self, sizes, batch_size=4):
                self.sizes = sizes
                self.batch_sampler = types.SimpleNamespace(batch_size=batch_size)
            def __iter__(self): return Iterator(self)
    """,
}
LOOP = """
    import sys, time
    import torch
    from torch.utils.data import DataLoader

    loader, model = DataLoader([4, 4, 4, 3]), torch.optim.SGD()
    time.sleep(0.3)  # set-up
    started = time.perf_counter()
    for epoch in range(3):
        for batch in loader:
            time.sleep(0.01)
            model.step()
    print(f"stopwatch={time.perf_counter() - started}")
    time.sleep(0.2)
"""


class Run:
    """A finished program: its output, and the files in its output folder."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.code, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self.files = sorted(path.name for path in folder.rglob("*")) if folder.exists() else []
        path = folder / "metrics.json"
        self.metrics: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if "train_seconds" in self.metrics:
            jsonschema.Draft202012Validator(SCHEMA).validate(self.metrics)

    @property
    def stopwatch(self) -> float:
        [line] = [line for line in self.stdout.splitlines() if line.startswith("stopwatch=")]
        return float(line.partition("=")[2])

    @property
    def reason(self) -> str | None:
        return self.metrics.get("observed", {}).get("not_measured")


Runner = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Run a script as a job does: `run(text, "-S", WORLD="2")`, with a torch of a few lines."""
    for name, text in TORCH.items():
        (tmp_path / "libraries" / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "libraries" / "torch" / name).write_text(textwrap.dedent(text))
    return runner(tmp_path, sys.executable, [IMAGE, tmp_path / "libraries"])


class Event:
    """A CUDA event; weak references to it are possible."""


def runner(tmp_path: Path, python: str, paths: list[Path]) -> Runner:
    def start(text: str, *options: str, out: str = "out", **variables: str) -> Run:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "SM_OUTPUT_DATA_DIR": str(tmp_path / out),
            "SM_USER_ENTRY_POINT": "train.py",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        done = subprocess.run(
            [python, *options, str(script)], env=environment, cwd=tmp_path, text=True,
            capture_output=True, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        return Run(done, tmp_path / out)

    return start


def test_a_forked_child_frees_no_event_of_its_parent(young: None) -> None:
    """It cannot use its parent's CUDA context, so destroying an event there would end it."""
    watched, first, last = Watch(), Event(), Event()
    watched._first_event, watched._last_event = first, last
    events = [weakref.ref(first), weakref.ref(last)]
    del first, last
    watched.after_fork()
    gc.collect(0)
    assert not watched.has_trained
    assert all(event() is not None for event in events)


def test_the_time_is_that_of_the_loop(run: Runner) -> None:
    done = run(LOOP)
    metrics = done.metrics
    assert metrics["train_seconds"] == pytest.approx(done.stopwatch) == pytest.approx(0.12)
    assert metrics["observed"]["starts_at"] == "data_request"
    assert (metrics["steps"], metrics["world"]["world_size"]) == (12, 1)
    assert (metrics["samples"]["processed"], metrics["observed"]["batch_size"]) == (45, 4)
    assert metrics["steady"]["step_seconds"] == pytest.approx(0.01)
    assert metrics["observed"]["data_wait_seconds"] == pytest.approx(0, abs=1e-6)
    assert done.stderr == ""


def test_rank_0_of_two_writes_for_both(run: Runner) -> None:
    first, second = run(LOOP, WORLD="2"), run(LOOP, WORLD="2", RANK="1", out="other")
    assert first.metrics["world"] == {"world_size": 2}
    assert first.metrics["samples"]["processed"] == 90
    assert second.files == []


def test_a_look_at_the_data_and_evaluations_are_told_from_the_training(run: Runner) -> None:
    text = """
        import time
        import torch
        from torch.utils.data import DataLoader
        loader, held_out = DataLoader([4] * 6), DataLoader([4] * 50)
        next(iter(loader)), list(held_out)  # a sanity check
        batches = iter(loader)              # and an iterator that the loop asks later
        time.sleep(0.3)
        model, started = torch.optim.SGD(), time.perf_counter()
        for _ in range(5):
            for batch in batches:
                time.sleep(0.01)
                model.step()
            list(held_out)
            batches = iter(loader)
        print(f"stopwatch={time.perf_counter() - started}")
    """
    done = run(text)
    assert done.metrics["train_seconds"] == pytest.approx(done.stopwatch)
    assert (done.metrics["steps"], done.metrics["samples"]["processed"]) == (30, 120)


@pytest.mark.parametrize(
    ("steps", "processed", "loop"),
    [
        (6, None, "for batch in loader:\n    if (n := n + 1) % 2 == 0: a.step()"),
        (12, 45, "for batch in loader: a.step(); b.step()"),
        (None, None, "for batch in loader:\n    a.step(); (n := n + 1) % 3 or b.step()"),
        (None, None, "for batch in loader: a.step(); a.step()"),
        (None, None, "for batch in loader:\n    if (n := n + 1) % 2 == 0: a.step(); a.step()"),
        (12, 45, "it = iter(loader); b = next(it)\n  while b: b = next(it, None); a.step()"),
        (12, 45, "for batch in loader: a.step()\n  a = torch.optim.SGD(); old.append(a)"),
    ],
    ids=[
        "accumulation",
        "in turns",
        "uneven",
        "in parts",
        "accumulation, in parts",
        "one batch ahead",
        "one after another",
    ],
)
def test_several_steps_or_optimizers_per_batch(
    run: Runner, steps: int | None, processed: int | None, loop: str
) -> None:
    head = """
import time, torch
from torch.utils.data import DataLoader
loader, a, b, n, old = DataLoader([4, 4, 4, 3]), torch.optim.SGD(), torch.optim.SGD(), 0, []
started = time.perf_counter()
for epoch in range(3):
  time.sleep(0.1)
"""
    done = run(head + "  " + loop.replace("\n    ", "\n      "))
    assert (done.metrics["steps"], done.metrics["samples"]["processed"]) == (steps, processed)
    assert done.metrics["train_seconds"] == pytest.approx(0.2)


def test_without_a_data_loader_it_takes_a_hundred_steps(run: Runner) -> None:
    """An evaluation with a DataLoader before the training is not the start of the training."""
    text = """
        import time, torch
        list(torch.utils.data.DataLoader([4] * 9))
        time.sleep(0.2)
        model, started = torch.optim.SGD(), time.perf_counter()
        for _ in range({}):
            time.sleep(0.002)
            model.step()
        print(f"stopwatch={{time.perf_counter() - started}}")
    """
    done = run(text.format(150))
    assert done.metrics["train_seconds"] == pytest.approx(done.stopwatch, rel=0.02)  # no first step
    assert (done.metrics["observed"]["starts_at"], done.metrics["steps"]) == ("first_step_end", 150)
    few = run(text.format(99), out="few")
    assert few.reason is not None and "99 steps" in few.reason


@pytest.mark.parametrize(
    ("text", "variables", "named"),
    [
        ("print('no torch')", {}, "never imported torch"),
        ("import torch; print(torch.__version__)", {"TORCH": "1.13.1"}, "torch 1.13.1"),
        ("import torch; torch.optim.SGD()", {}, "optimizer.step"),
        (
            "import torch; a = torch.optim.SGD(); a.step = print\nfor _ in range(200): a.step()",
            {}, "replaces optimizer.step",
        ),
        (
            "import torch\ntorch.compiler.compiling = True\n"
            "for _ in range(200): torch.optim.SGD().step()",
            {}, "compiles the step",
        ),
        (
            "import torch\ntorch.cuda.on = torch.cuda.capturing = True\n"
            "for _ in range(200): torch.optim.SGD().step()",
            {}, "CUDA graph",
        ),
        (
            "import sys, torch; sys.modules['torch_xla'] = sys\n"
            "for _ in range(200): torch.optim.SGD().step()",
            {}, "torch_xla",
        ),
        (
            "import torch\ntorch.cuda.is_initialized = lambda: 1 / 0\n"
            "for _ in range(200): torch.optim.SGD().step()",
            {}, "ZeroDivisionError",
        ),
        ("import torch\nfor _ in range(200): torch.optim.SGD().step()\nx", {}, "NameError"),
        (
            "import os\nif os.fork() == 0:\n  import torch\n"
            "  for _ in range(200): torch.optim.SGD().step()\n  os._exit(0)\nos.wait()",
            {}, "forked before it imported torch",
        ),
    ],
    ids=["no torch", "old torch", "no step", "replaced", "compiled", "graph", "xla", "error",
         "failed", "forked"],
)  # fmt: skip
def test_what_cannot_be_measured_gives_a_reason(
    run: Runner, text: str, variables: Mapping[str, str], named: str
) -> None:
    done, plain = run(text, **variables), run(text, NODESWEEP_MEASURE="off", out="off", **variables)
    assert done.reason is not None and named in done.reason
    assert "train_seconds" not in done.metrics
    assert ("error" in done.metrics["observed"]) is (done.code != 0)
    assert (done.code, done.stdout, done.stderr) == (plain.code, plain.stdout, plain.stderr)
    assert plain.files == []


@pytest.mark.parametrize("options", [("-S",), ("-I",), ("-E",)])
def test_without_site_it_runs_as_before(run: Runner, options: tuple[str, ...]) -> None:
    done = run("print('ran')", *options)
    assert (done.code, done.stdout, done.stderr, done.files) == (0, "ran\n", "", [])


@pytest.mark.parametrize(
    "variables",
    [
        {"NODESWEEP_MEASURE": "off"},
        {"NODESWEEP_MEASURE": "helper"},
        {"NODESWEEP_PROBE_PRECISION": "0.01"},
        {"NODESWEEP_RUN_STEPS": "12"},
        {"NODESWEEP_RUN_SECONDS": "12"},
    ],
)
def test_a_sweep_may_turn_it_off(run: Runner, variables: Mapping[str, str]) -> None:
    assert run(LOOP, **variables).files == []


@pytest.mark.parametrize("place", [".", "run-1/version_0"])
def test_the_programs_own_file_stays(run: Runner, place: str) -> None:
    own = f"""
        import os
        from pathlib import Path
        folder = Path(os.environ["SM_OUTPUT_DATA_DIR"], "{place}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text('{{"steps": 5}}')
    """
    done = run(textwrap.dedent(LOOP) + textwrap.dedent(own))
    assert done.files.count("metrics.json") == 1 and "observed" not in done.metrics


def test_the_helper_wins(run: Runner) -> None:
    done = run("""
        import torch
        from nodesweep_clock import clock
        model = torch.optim.SGD()
        with clock():
            for _ in range(200):
                model.step()
                clock.step()
    """)
    assert done.metrics["steps"] == 200 and "observed" not in done.metrics


def test_a_copy_of_the_helper_next_to_the_script_is_the_scripts(
    run: Runner, tmp_path: Path
) -> None:
    (tmp_path / "nodesweep_clock.py").write_text("mine = True")
    done = run("import torch\nfrom nodesweep_clock import mine\nprint(mine)")
    assert done.stdout == "True\n"


def test_copies_next_to_the_script_measure_it_in_another_image(run: Runner, tmp_path: Path) -> None:
    """The toolkit puts the script's folder on PYTHONPATH, as test_toolkit_launches.py shows."""
    for path in (IMAGE / "sitecustomize.py", *IMAGE.glob("nodesweep_*.py")):
        shutil.copy(path, tmp_path)
    paths = (tmp_path, tmp_path / "libraries")
    done = run(LOOP, PYTHONPATH=os.pathsep.join(map(str, paths)))
    assert (done.code, done.metrics["steps"]) == (0, 12), done.stderr


@pytest.mark.parametrize("body", ["print('mine')", "raise ValueError('mine')"])
def test_a_sitecustomize_of_ones_own_runs(run: Runner, tmp_path: Path, body: str) -> None:
    plain = run("import sys\nprint('sitecustomize' in sys.modules)", NODESWEEP_MEASURE="off")
    (tmp_path / "libraries" / "sitecustomize.py").write_text(body + "\nname = 'mine'")
    script = """
        import sys
        module = sys.modules.get("sitecustomize")
        print(getattr(module, "name", None), getattr(module, "__file__", "").count("libraries"))
    """
    done = run(script)
    alone = run(script, out="alone", PYTHONPATH=str(tmp_path / "libraries"))
    assert plain.stdout in ("True\n", "False\n")
    assert (done.stdout, done.stderr, done.code) == (alone.stdout, alone.stderr, alone.code)
    assert "mine" in done.stdout + done.stderr


def test_a_forked_child_that_trains_is_measured(run: Runner) -> None:
    text = (
        "import multiprocessing\ndef train():\n"
        + textwrap.indent(textwrap.dedent(LOOP), "    ")
        + "\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('fork').Process(target=train)\n"
        "    child.start(); child.join()\n"
    )
    done = run(text)
    assert done.metrics["train_seconds"] == pytest.approx(done.stopwatch)


@pytest.mark.parametrize("folds", [2, 3])
def test_trainings_in_processes_of_their_own_are_not_taken_for_one(
    run: Runner, tmp_path: Path, folds: int
) -> None:
    """In a cross-validation, the time of the first fold is not the job's."""
    (tmp_path / "fold.py").write_text(textwrap.dedent(LOOP))
    done = run(f"""
        import subprocess, sys
        for fold in range({folds}):
            subprocess.run([sys.executable, "fold.py"], check=True)
    """)
    assert done.code == 0, done.stderr
    assert (done.reason or "").startswith("several processes of the program trained")
    assert "train_seconds" not in done.metrics


@pytest.mark.parametrize("shape", ["square", "1 / 0"])
def test_a_batch_of_the_programs_own_class_is_not_called(run: Runner, shape: str) -> None:
    text = textwrap.dedent(LOOP).replace(
        "started =",
        f"""
square = "square"
class Batch:
    shape = property(lambda self: {shape})
    def values(self): print("called")
import torch.utils.data as data
data.Iterator.__next__ = lambda self: (next(self.sizes), Batch())[1]
started =""",
    )
    done = run(text)
    assert "called" not in done.stdout
    assert done.metrics["steps"] == 12 and done.metrics["samples"]["processed"] is None


def test_a_step_before_the_training_is_not_its_start(run: Runner) -> None:
    """Set-up may follow such a step, for example to create the optimizer's state."""
    text = textwrap.dedent(LOOP).replace("time.sleep(0.3)", "model.step(); time.sleep(0.3)")
    done = run(text.replace("range(3)", "range(30)").replace("time.sleep(0.01)", "pass"))
    assert (done.reason or "").startswith("its first optimizer step came before")


SLOW_START = """
import time
from torch.utils import data
start = data.Iterator.__init__
def slowly(self, loader):
    time.sleep(0.25 if loader.sizes == [2] * 4 else 0)
    start(self, loader)
data.Iterator.__init__ = slowly
second = data.DataLoader([2] * 4, 2)
"""


@pytest.mark.parametrize("order", ["zip(loader, second)", "zip(second, loader)"])
def test_steps_of_batches_from_loaders_begun_together_are_measured(run: Runner, order: str) -> None:
    """The time begins with the first loader, however long the second one's start takes."""
    done = run(SLOW_START + textwrap.dedent(LOOP).replace("in loader:", f"in {order}:"))
    assert done.metrics["train_seconds"] == pytest.approx(done.stopwatch)
    assert (done.metrics["steps"], done.metrics["observed"]["starts_at"]) == (12, "data_request")
    assert done.metrics["samples"]["processed"] is None, "of two loaders, which?"
    assert done.stderr == ""


def test_an_iterator_made_before_does_not_begin_the_training(run: Runner) -> None:
    text = (
        textwrap.dedent(LOOP)
        .replace("time.sleep(0.3)", "other = iter(DataLoader([2] * 12, 2)); time.sleep(0.3)")
        .replace("in loader:", "in loader:\n        next(other)")
    )
    done = run(text)
    assert done.metrics["train_seconds"] == pytest.approx(done.stopwatch)


def test_an_evaluation_in_every_step_is_not_taken_for_the_training(run: Runner) -> None:
    text = textwrap.dedent(LOOP).replace(
        "model.step()", "model.step()\n        next(iter(DataLoader.second))"
    )
    done = run(text.replace("for epoch", "DataLoader.second = DataLoader([8], 8)\nfor epoch"))
    assert "several DataLoaders" in (done.reason or "")


def test_an_iterator_of_the_programs_own_is_left_alone(run: Runner) -> None:
    done = run("""
        import torch
        import torch.utils.data as data
        data.Iterator.__new__ = lambda kind, loader: (data.Tensor(size) for size in loader.sizes)
        model = torch.optim.SGD()
        for batch in data.DataLoader([4] * 120):
            model.step()
    """)
    assert done.code == 0, done.stderr
    assert done.metrics["observed"]["starts_at"] == "first_step_end"


def test_samples_are_counted_once_where_processes_share_their_batches(run: Runner) -> None:
    """Two groups of two processes: each group splits a model, and its processes get one batch."""
    text = textwrap.dedent(LOOP).replace(
        "time.sleep(0.3)", "loader.sampler = type('Sampler', (), {'num_replicas': 2})"
    )
    split, replicated = run(text, WORLD="4"), run(text, WORLD="2", out="replicated")
    assert split.metrics["world"]["world_size"] == 4
    assert split.metrics["samples"]["processed"] is None
    assert replicated.metrics["samples"]["processed"] == 90


def test_a_framework_is_watched_and_one_that_resists_ends_only_the_split(
    run: Runner, tmp_path: Path
) -> None:
    frameworks = {
        "accelerate": """
            class Accelerator:
                def save_state(self): pass
        """,
        "pytorch_lightning": """
            class Closed(type):
                def __setattr__(self, name, value): raise TypeError
            class Trainer(metaclass=Closed):
                def save_checkpoint(self): pass
        """,
    }
    for name, text in frameworks.items():
        (tmp_path / "libraries" / f"{name}.py").write_text(textwrap.dedent(text))
    framework = """
    import accelerate, pytorch_lightning
    assert hasattr(accelerate.Accelerator.save_state, "__wrapped__")
    """
    done = run(framework + LOOP)
    assert done.code == 0, done.stderr
    assert done.metrics["steps"] == 12


def test_a_second_process_group_is_not_the_trainings(run: Runner) -> None:
    """The program ends the group of its training, and creates a smaller one to collect results."""
    text = textwrap.dedent(LOOP) + "import os; os.environ['WORLD'] = '1'\n"
    assert run(text, WORLD="2").metrics["world"] == {"world_size": 2}


def test_an_exit_without_handlers_writes_nothing(run: Runner) -> None:
    assert run(textwrap.dedent(LOOP) + "\nimport os; os._exit(0)").files == []


def test_a_training_thread_writes_before_its_launcher_kills_the_process(run: Runner) -> None:
    """As in Ray Train, which sets the rank after the start and ends its workers with ray.kill."""
    text = (
        "import os, threading\ndef train_func():\n"
        + textwrap.indent(textwrap.dedent(LOOP), "    ")
        + "    import nodesweep_measure\n    nodesweep_measure.write()\n"
        "os.environ.update(RANK='0', LOCAL_WORLD_SIZE='2', NODE_RANK='0')\n"
        "thread = threading.Thread(target=train_func)\n"
        "thread.start(); thread.join(); os._exit(1)\n"
    )
    done = run(text, WORLD="2", SM_USER_ENTRY_POINT="")
    assert (done.code, done.files, done.metrics["steps"]) == (1, ["metrics.json"], 12)
    assert done.metrics["world"] == {"world_size": 2, "processes_per_node": 2}


def test_other_processes_of_the_job_write_nothing(run: Runner) -> None:
    """A launcher, pip and the workers of a loader start with the same environment."""
    assert run("import torch", SM_USER_ENTRY_POINT="launch.py").files == []
    assert run("import torch", SM_USER_ENTRY_POINT="").files == []
    assert run(LOOP, SM_USER_ENTRY_POINT="launch.py").metrics["steps"] == 12
    assert run(LOOP, SM_OUTPUT_DATA_DIR="", out="nowhere").files == []


def test_the_last_step_ends_on_the_gpu(run: Runner) -> None:
    """The GPU is one second behind at the end; only the first step waits for it."""
    text = textwrap.dedent(LOOP).replace("started =", "torch.cuda.on = True; started =")
    text = text.replace(
        "        model.step()",
        "        torch.cuda.ahead = float(epoch == 2)\n        model.step()",
    )
    done = run(text + "\nprint(torch.cuda.synchronized)")
    assert done.metrics["train_seconds"] == pytest.approx(done.stopwatch + 1.0)
    assert done.stdout.endswith("\n1\n")


def test_an_absence_is_explained_once_the_program_has_ended(run: Runner) -> None:
    text = "import nodesweep_measure; nodesweep_measure.explain_absence()"
    variables = {"SM_USER_ENTRY_POINT": "other.py"}
    assert "os._exit" in (run(text, **variables).reason or "")
    measured = run(LOOP, out="measured").metrics
    assert run(text, out="measured", **variables).metrics == measured
    assert run(text, out="off", NODESWEEP_MEASURE="off", **variables).files == []


REAL = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 64), torch.randint(4, (512,)))
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 4))
    sampler = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        sampler = DistributedSampler(data)
        model = nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=WORKERS)
    optimizer = torch.optim.AdamW(model.parameters())
    started = time.perf_counter()
    for epoch in range(6):
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
    seconds = time.perf_counter() - started
    sys.stdout.write(f"loss {loss.item()!r}\\n")
    if os.environ.get("RANK", "0") == "0":
        open("stopwatch", "w").write(f"{seconds}")
    if dist.is_initialized():
        dist.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a thread is Linux's to tell")
def test_a_program_does_not_end_under_a_thread_of_gloo(run: Runner) -> None:
    """PyTorch would abort the program, as it may abort one without a clock
    (test_nodesweep_clock.py)."""
    done = run("""
        import ctypes, hashlib, os, threading
        import torch

        def collective():
            ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)  # PR_SET_NAME
            started.set()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)  # holds no lock of Python
            os.write(1, b"let go of its tensors")

        started = threading.Event()
        threading.Thread(target=collective, daemon=True).start()
        started.wait()
    """)
    assert done.stdout.endswith("its tensors")


@pytest.fixture
def run_real(image_python: str, tmp_path: Path) -> Runner:
    """Run a script like `run`, but with the image's torch."""
    return runner(tmp_path, image_python, [IMAGE])


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 1), (2, 0)])
def test_with_torch_the_time_is_the_stopwatchs_and_the_output_the_same(
    run_real: Runner, tmp_path: Path, ranks: int, workers: int
) -> None:
    torchrun = TORCHRUN if ranks > 1 else ()
    text = REAL.replace("WORKERS", str(workers))
    # A busy machine may come between the two clocks, but not each time. Runs have folders of their
    # own: in one folder, the second run would be a second training of one job.
    for attempt in range(5):
        done = run_real(text, *torchrun, out=f"out{attempt}")
        assert done.code == 0, done.stderr
        stopwatch = float((tmp_path / "stopwatch").read_text())
        is_same = done.metrics["train_seconds"] == pytest.approx(stopwatch, rel=0.02, abs=0.02)
        if is_same:
            break
    assert is_same, f"{done.metrics['train_seconds']} s, by the stopwatch {stopwatch} s"
    assert done.metrics["steps"] == 192 // ranks
    assert done.metrics["world"]["world_size"] == ranks
    assert done.metrics["samples"]["processed"] == 6 * 512
    plain = run_real(text, *torchrun, NODESWEEP_MEASURE="off", out="off")
    lines = [sorted(each.stdout.splitlines()) for each in (done, plain)]
    assert lines[0] == lines[1] and len(lines[0]) == ranks
    assert (done.code, plain.code, plain.files) == (0, 0, [])


@pytest.mark.slow
def test_with_torch_a_compiled_step_runs_as_before(run_real: Runner) -> None:
    done = run_real("""
        import torch
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        step = torch.compile(optimizer.step, backend="eager", fullgraph=False)
        for _ in range(5):
            weight.grad = torch.ones(4)
            step()
        print(weight.tolist())
    """)
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("[0.49999"), done.stdout
    assert done.reason is not None, done.metrics


@pytest.mark.slow
def test_with_torch_watched_functions_can_be_pickled_and_scripted(run_real: Runner) -> None:
    done = run_real("""
        import pickle
        import torch
        import torch.distributed as dist
        for each in (torch.save, torch.autograd.backward, dist.all_reduce):
            assert pickle.loads(pickle.dumps(each)) is each
        def train(x: torch.Tensor):
            torch.autograd.backward([x.sum()])
        ones = torch.ones(3, requires_grad=True)
        torch.jit.script(train)(ones)
        print(ones.grad.tolist())
    """)
    assert (done.code, done.stdout) == (0, "[1.0, 1.0, 1.0]\n"), done.stderr


@pytest.mark.slow
def test_with_torch_a_rank_that_dies_leaves_no_time(run_real: Runner) -> None:
    text = textwrap.dedent(REAL.replace("WORKERS", "0")).replace(
        "        loss.backward()",
        "        if epoch == 1 and os.environ['RANK'] == '1': os._exit(3)\n        loss.backward()",
    )
    done = run_real(text, *TORCHRUN)
    assert done.code != 0
    assert "train_seconds" not in done.metrics
