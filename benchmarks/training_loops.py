"""Train small networks by real training loops on emulated nodes in network namespaces.

A job runs several cases, each in a process forked from one that has imported torch and the
framework. Sleeps replace compute, so that other work on this machine slows no node; gradients,
loaders, hooks and nodesweep_measure.py are real. benchmarks/causes.py and predict_runs.py define
the trained network and its sleeps.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.emulation import Bench
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from sagemaker_emulator.engine.host.network import OwnNetworks

REPOSITORY = Path(__file__).resolve().parents[1]
VENVS = REPOSITORY / ".nodesweep" / "tests" / "venvs"
PACKAGES = {
    "plain": "torch",
    "lightning": "pytorch_lightning",
    "accelerate": "accelerate",
    "hf": "transformers",
    "deepspeed": "deepspeed",
}
"""Package by which an environment of a framework is found; the tests of examples/ create these."""
_START = """
sys.path.insert(0, os.environ["IMAGE"])
import nodesweep_measure
nodesweep_measure.watch()
import datetime, importlib, traceback
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler
kind, steps, every = os.environ["FRAMEWORK"], int(os.environ["STEPS"]), int(os.environ["EVERY"])
injected = {}  # seconds by cause
results = pathlib.Path(os.environ["RESULTS"])
hosts = sorted(resources["hosts"], key=lambda name: int(name.split("-")[1]))
world, batch, ddp, count = len(hosts), 8, {}, 0
os.environ.update(
    SM_CURRENT_HOST=host, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0",
    LOCAL_WORLD_SIZE="1", GROUP_RANK=str(rank), NODE_RANK=str(rank), MASTER_ADDR=hosts[0],
    MASTER_PORT="29500", TORCHELASTIC_RUN_ID="loops", ACCELERATE_USE_CPU="1",
)
torch.set_num_threads(1)
class Rows(Dataset):
    def __init__(self, rows): self.rows = rows
    def __len__(self): return self.rows
    def __getitem__(self, row):
        return {"pixels": torch.full((64,), row % 7 / 7.0), "labels": row % 10}
"""
_LOOPS = """def loader(sampler=None):
    return DataLoader(data, batch_size=batch // world, sampler=sampler, collate_fn=collate)
def loop(model, batches, backward, step, zero=lambda: None):
    for rows in batches:
        zero()
        backward(model(**rows)["loss"])
        step()
        after_step()
def plain():
    model = nn.parallel.DistributedDataParallel(net, **ddp)
    batches = loader(DistributedSampler(data))
    loop(model, batches, lambda loss: loss.backward(), optimizer.step, optimizer.zero_grad)
def accelerate():
    package = modules[0]
    options = [package.DistributedDataParallelKwargs(**ddp)]
    accelerator = package.Accelerator(cpu=True, kwargs_handlers=options)
    model, wrapped, batches = accelerator.prepare(net, optimizer, loader())
    loop(model, batches, accelerator.backward, wrapped.step, wrapped.zero_grad)
def deepspeed():
    deepspeed = modules[0]
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    engine, _, _, _ = deepspeed.initialize(
        model=net, optimizer=optimizer,
        config={"train_micro_batch_size_per_gpu": batch // world, "zero_optimization": {"stage": 1},
                "zero_allow_untested_optimizer": True},
    )
    loop(engine, loader(DistributedSampler(data)), engine.backward, engine.step)
def lightning():
    pl = modules[0]
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net
        def training_step(self, rows, index): return self.net(**rows)["loss"]
        def configure_optimizers(self): return optimizer
    class After(pl.Callback):
        def on_train_batch_end(self, *args): after_step()
    pl.Trainer(
        max_epochs=1, strategy=pl.strategies.DDPStrategy(**ddp), accelerator="cpu", devices=1,
        num_nodes=world, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[After()],
    ).fit(Module(), loader())
def hf():
    transformers = modules[0]
    class After(transformers.TrainerCallback):
        def on_step_end(self, *args, **more): after_step()
    args = transformers.TrainingArguments(
        output_dir=str(out), per_device_train_batch_size=batch // world, max_steps=steps,
        use_cpu=True, report_to="none", save_strategy="no", logging_strategy="no",
        disable_tqdm=True, max_grad_norm=0.0,
    )
    transformers.Trainer(
        model=net, args=args, train_dataset=data, data_collator=collate, callbacks=[After()],
        optimizers=(optimizer, None),
    ).train()
def train_case():
    torch.manual_seed(0)
    os.environ["SM_OUTPUT_DATA_DIR"] = str(out)
    dist.init_process_group(
        "gloo", init_method=f"file://{results}/rendezvous-{case['run']}", rank=rank,
        world_size=world, timeout=datetime.timedelta(seconds=120),
    )
    prepare()
    dist.barrier()
    {"plain": plain, "accelerate": accelerate, "deepspeed": deepspeed, "lightning": lightning,
     "hf": hf}[kind]()
    nodesweep_measure.write()
    return {path.name: json.loads(path.read_text()) for path in out.glob("*.json")}
modules = [importlib.import_module(name) for name in os.environ["MODULES"].split()]
torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # imports more, before the CPU time is limited
wait_for_go()
for case in json.loads(os.environ["CASES"]):
    child = os.fork()  # one import of torch for all cases
    if not child:
        try:
            out = results / f"out-{case['run']}-{rank}"
            out.mkdir()
            files = train_case()
            said = {"injected": injected, "files": files}
        except BaseException as error:
            said = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        part = results / f"part-{case['run']}-{rank}"
        part.write_text(json.dumps(said))
        part.rename(results / f"{case['run']}-{rank}.json")
        os._exit(0)
    os.waitpid(child, 0)
done()
"""


def run_loops(
    folder: Path,
    python: str,
    program: str,
    instance_type: str,
    nodes: int,
    framework: str,
    cases: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
) -> tuple[list[list[dict[str, Any]]], float | None]:
    """Run a job of several cases.

    Returns:
        The output of each node for each case, and the lowest share of its CPU quota that a node got
        when it needed CPU time; the share is None if unknown.

    Args:
        folder: Folder for the job's files.
        python: A Python that has the framework.
        program: Source that defines `collate()`, `after_step()`, and `prepare()`, which creates
            `net`, `data` and `optimizer` for the global `case`.
        instance_type: Type of the nodes, which determines their network.
        nodes: Number of nodes.
        framework: A name in PACKAGES.
        cases: Values of `case`.
        environment: Further environment variables, among them STEPS and EVERY.

    Raises:
        SystemExit: Nodes have no networks of their own here, or a node gave no result.
    """
    results = Path(tempfile.mkdtemp(dir=folder))
    bench = Bench(results / "bench", python, _START + program + _LOOPS, instance_type)
    try:
        if not isinstance(bench.engine._network, OwnNetworks):
            raise SystemExit("cannot give nodes network namespaces; run the benchmark as root")
        _, attained = bench.run(
            nodes,
            nodes,
            {
                "IMAGE": str(REPOSITORY / "infra" / "image"),
                "RESULTS": str(results),
                "FRAMEWORK": framework,
                "MODULES": PACKAGES[framework],
                "CASES": json.dumps([{**case, "run": run} for run, case in enumerate(cases)]),
                "OMP_NUM_THREADS": "1",
                **environment,
            },
        )
    finally:
        bench.engine.close()
    written = [
        [results / f"{run}-{rank}.json" for rank in range(nodes)] for run in range(len(cases))
    ]
    said = [[json.loads(each.read_text()) for each in files if each.exists()] for files in written]
    shares = [each.share for each in attained if each.share is not None]
    return said, min(shares, default=None)


def outcome_of(
    said: Sequence[Mapping[str, Any]], repeat: int = 1, global_batch_size: int | None = None
) -> JobOutcome:
    """Return the outcome of a job from the files of its nodes, as the pipeline derives it."""
    files = {name: content for each in said for name, content in each["files"].items()}
    metrics = files.get("metrics.json", {})
    seconds = metrics.get("train_seconds")
    if seconds is None:
        raise SystemExit(f"not measured: {metrics.get('observed')}")
    if "budget" in metrics:
        others = [files[name] for name in sorted(files) if name.startswith("nodesweep-budget-")]
        metrics = {**metrics, "budget": [*metrics["budget"], *others]}
    return JobOutcome(
        nodes=len(said),
        repeat=repeat,
        attempt=1,
        job_name=f"n{len(said)}-r{repeat}",
        status="Completed",
        platform_kind="emulated",
        clocks=Clocks(train_seconds=seconds),
        train_clock="observed",
        train_seconds_by={"observed": seconds},
        metrics=metrics,
        world_size=len(said),
        global_batch_size=global_batch_size,
    )


def find_python(framework: str) -> str | None:
    """Return a Python with a framework and few others; None if no environment has it."""
    found = []
    for venv in sorted(VENVS.glob("*/")):
        installed = {path.name for path in venv.glob("lib/python3*/site-packages/*")}
        if {"torch", PACKAGES[framework]} <= installed:
            others = sum(package in installed for package in PACKAGES.values())
            found.append((others, str(venv / "bin" / "python")))
    return min(found)[1] if found else None
