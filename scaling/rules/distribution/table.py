"""docs/distribution.md, made from the options and their config models."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from configs.catalogue import InstanceType, load_catalogue
from configs.distribution import DistributionConfig
from scaling.rules.distribution.option import Option
from scaling.rules.distribution.options import OPTIONS
from scaling.rules.distribution.trials import (
    LAUNCH_EVIDENCE,
    PROGRAM_ON_GLOO,
    REQUEST_EVIDENCE,
    TRIALS,
    Run,
    Trials,
)

_HEAD = """\
# Distribution options

Which `kind` of `training.distribution` fits your program, and on what does it run? This page is
made by `python -m scaling.rules.distribution > docs/distribution.md`. Edit
scaling/rules/distribution, not this file.

- `training.distribution` is one choice, told apart by `kind`. Each kind has its own fields and
  refuses others.
- What is sent is what the estimators of the SageMaker SDK 2.257.7 send for the same choice. It is
  held by recordings of it (`tests/scaling/golden_requests`).
- An example of each lies in `configs/examples/` (of `none`: `configs/local.yaml`).
- `nodesweep plan` checks what stands below before anything is sent (exit code 3, every problem at
  once). Its hints refuse nothing.
"""
_TAIL = """\
## Settings of the Elastic Fabric Adapter

Under `mpi`, `horovod` and `smp_v1` the ranks of an instance with EFA get `FI_PROVIDER=efa`,
`RDMAV_FORK_SAFE=1` and, where the adapter can, `FI_EFA_USE_DEVICE_RDMA=1` (`-x NAME=value` after
your `custom_mpi_options`, unless they say it themselves or `efa_flags` is false). The adapters of
p3dn, g4dn and g5 can't, and libfabric aborts a process that demands it: that is refused. Under
the other kinds the toolkit does the same for the instance types it knows; on others the plan says
what to put into `training.environment`.

## What the image's name tells

The version rules look at AWS's own containers, whose tag names the PyTorch version and mostly
CUDA's: `image.uri` is refused where it can't carry the option. So are `image.base_image` and
`image.framework` under the shipped program with `requirements-on-dlc`, which leaves the
container's PyTorch alone; where you build more on them it is a hint, since that may bring what is
missing. Nothing is assumed of others. For every kind it is asked, too, whether the container's
CUDA has code for the GPUs, and whether its processor and device are the instance's:
[preflight.md](preflight.md).

## One batch on several ranks

Where a model is split (`smp_v1`, `smp_v2`) several ranks work on the same samples, so the
per-replica batch is B / (world size / ranks per replica × accumulation). Ranks per replica are
`partitions` (times `tensor_parallel_degree` if `prescaled_batch`) for `smp_v1`,
`tensor_parallel_degree` × `context_parallel_degree` for `smp_v2`.
"""
_RUNS = """\
## What was run

**Nothing of this has run on AWS, on a GPU or on a NeuronCore, and no container of AWS was ever
started by this project.** What stands below ran on CPUs, each with the test that shows it:

- **request**: it equals the one that this SDK sent for the same choice (`{request}`).
- **launch path**: sagemaker-training and sagemaker-pytorch-training read the request of every
  shipped config from /opt/ml, at 1 and 8 nodes; the command that they made was compared, and the
  arguments in it went through the program's parser. No command was executed, and `nvidia-smi`,
  `neuron-ls`, `smddprun` and `smddpmprun` were stand-ins (`{launch}`).
- **gloo**: that launcher ran jobs to their end, gradients exchanged by gloo, in an image without
  any AWS container.
- **full**: in the container and on the hardware that it is meant for, with its own library.

| kind | request | launch path | gloo | full | what never ran |
|---|---|---|---|---|---|
"""
_PROGRAM_RUNS = """
The shipped program by itself, whichever launcher: 2 ranks over gloo on CPUs, trained, saved and
resumed, under PyTorch {versions}. Under any other version it has not run.
"""
_SAMPLE_TYPES = {"trainium": "ml.trn1.32xlarge", "smp_v1": "ml.p3.16xlarge"}
_SAMPLE_VALUES: dict[str, dict[str, Any]] = {
    "torch_distributed": {"processes_per_node": 8},
    "smp_v1": {"partitions": 2, "processes_per_node": 8},
    "smp_v2": {"hybrid_shard_degree": 8},
    "mpi": {"processes_per_node": 8},
    "trainium": {"processes_per_node": 32},
    "horovod": {"processes_per_node": 8},
}


def distribution_document() -> str:
    """The whole file as Markdown."""
    rows = [
        f"| [`{option.kind}`](#{option.kind}) | {option.launcher} | {option.instances} |"
        f" {_cell(option.image_family)} |"
        for option in OPTIONS
    ]
    table = ["| kind | launcher | instances | image |", "|---|---|---|---|", *rows]
    sections = [_section(option) for option in OPTIONS]
    return "\n".join([_HEAD, *table, "", runs_table(), *sections, _TAIL]).rstrip() + "\n"


def runs_table() -> str:
    """The section that says what of every option was run, and what never."""
    rows = [_trial_row(option.kind, TRIALS[option.kind]) for option in OPTIONS]
    head = _RUNS.format(request=REQUEST_EVIDENCE, launch=LAUNCH_EVIDENCE)
    return head + "\n".join(rows) + "\n" + _PROGRAM_RUNS.format(versions=", ".join(PROGRAM_ON_GLOO))


def _trial_row(kind: str, trials: Trials) -> str:
    cells = [
        _versions(trials.request),
        _versions(trials.launch),
        _runs(trials.gloo),
        _runs(trials.full),
        trials.never,
    ]
    return f"| [`{kind}`](#{kind}) | {' | '.join(map(_cell, cells))} |"


def _versions(versions: tuple[str, ...]) -> str:
    return ", ".join(versions) or "never"


def _runs(runs: tuple[Run, ...]) -> str:
    return (
        "; ".join(f"{', '.join(run.versions)}: {run.what} (`{run.evidence}`)" for run in runs)
        or "never"
    )


def config_models() -> dict[str, type[BaseModel]]:
    """Kind -> its config model."""
    return {
        get_args(model.model_fields["kind"].annotation)[0]: model
        for model in get_args(get_args(DistributionConfig)[0])
    }


def _section(option: Option) -> str:
    lines = [
        f"## {option.kind}",
        "",
        (
            f"SDK v2: `distribution={option.sdk_argument}`"
            if option.kind != "none"
            else "SDK v2: no `distribution`."
        ),
        "",
        f"- Runs as {option.runs_as}.",
        f"- Sends {_sent(option)}.",
        "",
        "The program must:",
        "",
        *(f"- {text}" for text in option.program_must),
        "",
        "Known to be wrong:",
        "",
        *(f"- {text}" for text in option.known_wrong),
        "",
    ]
    fields = [
        (name, field)
        for name, field in config_models()[option.kind].model_fields.items()
        if name != "kind"
    ]
    if fields:
        lines += ["| field | meaning |", "|---|---|"]
        lines += [
            f"| `{name}`{_required(field)} | {_cell(str(field.description))} |"
            for name, field in fields
        ]
        lines.append("")
    return "\n".join(lines)


def _sent(option: Option) -> str:
    instance = _sample_instance(option)
    config = config_models()[option.kind](kind=option.kind, **_SAMPLE_VALUES.get(option.kind, {}))
    names = option.hyperparameters(config, instance)
    return ", ".join(f"`{name}`" for name in names) or "no hyperparameter of its own"


def _sample_instance(option: Option) -> InstanceType:
    return load_catalogue().get(_SAMPLE_TYPES.get(option.kind, "ml.p4d.24xlarge"))


def _required(field: Any) -> str:
    return " (required)" if field.is_required() else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
