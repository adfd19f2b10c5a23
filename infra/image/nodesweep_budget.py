"""Split one process's training time into parts, for nodesweep_measure and the shipped program.

The time between two events is assigned to one part. Events are the request for a DataLoader's batch
and its arrival, and the start and end of torch.autograd.backward, of a collective of
torch.distributed, of torch.save or a framework's call around it (SAVES), and of an optimizer step.
In a backward pass, a callback of the autograd engine, queued before DistributedDataParallel's own,
marks when the gradients are computed; the rest of the pass waits for their reduction, and is
communication that does not overlap with computation. If parameters are on GPUs, the parts are times
of the current stream (nodesweep_laps).

The parts sum to the train time. The time before the end of the first step (`start`) and the time of
other threads are not split. Steps under 20 ms are not split, so that the measurement takes at most
about 1%. An error stops the split and is the reason in metrics.json; the program and its train time
are unaffected.
"""

import contextlib
import functools
import os
import sys
import threading
import time
from array import array
from types import ModuleType

from nodesweep_flops import flops
from nodesweep_laps import CpuLaps, GpuLaps
from nodesweep_network import install as install_network
from nodesweep_network import network

PARTS = (
    "start",  # up to the end of the first step
    "data",
    "forward",  # from the batch to the backward pass
    "backward",
    "communication",  # not overlapped, including waits for slower processes
    "optimizer",
    "evaluation",
    "checkpoint",
    "other",
)
FILE = "nodesweep-budget-{rank}.json"  # for ranks whose parts are not in metrics.json
COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "barrier", "send", "recv", "gather", "scatter"),
    *("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single", "all_reduce_coalesced", "all_gather_coalesced"),
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    "_broadcast_coalesced",  # DistributedDataParallel's forward sends buffers with it
)
_LIGHTNING = {
    "Trainer": ("save_checkpoint",),
    "callbacks.ModelCheckpoint": ("on_train_batch_end", "on_train_epoch_end", "on_validation_end"),
}
# Public calls that save, by module and class: they collect the state before torch.save or
# safetensors write it, and wait for the other processes after it.
SAVES = {
    "lightning.pytorch": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "accelerate": {"Accelerator": ("save_state", "save_model")},
    "transformers.trainer": {"Trainer": ("save_model",)},
}
# On an idle machine, a step of 4 ms took 159 microseconds longer with the parts (95%: -71 to 237),
# and 18 longer without them. That is about 1% of 20 ms, so shorter steps are not split. Below
# 30 ms, the callback runs only in every fourth step.
_PACES_AFTER, _LEAST_STEP_SECONDS = (20, 200), 0.02
_SHORT_STEP_SECONDS, _EVERY_SHORT_STEP = 0.03, 4
_MOST_VALUES = 2000  # communication times to keep: of each step, or sums over 2, 4, ... steps


class Budget:
    """Splits this process's time into parts."""

    def __init__(self):
        self._laps, self._earlier_laps = None, []
        self.reset()

    def reset(self):
        """Reset all measurements; called at the start and in a forked process."""
        flops.reset()
        # Never freed: a forked process, such as a loader's worker, cannot use its parent's CUDA
        # context, so it must not destroy its events.
        self._earlier_laps.append(self._laps)
        self.thread = None  # None: before the first step, in a pause, or not measured
        self._is_paused, self._paused_seconds = False, 0.0
        self.is_inside = False
        self._reason = None  # why the split has ended
        self._laps, self._is_on_gpu = CpuLaps(0.0), False
        self._at_step = None
        self._place, self._paused_at = "other", 0.0
        self._in_backward, self._handle, self._marked = False, None, False
        self.steps, self._every, self._first_end = 0, 1, 0.0
        self._values, self._steps_per_value, self._known_steps = array("d"), 1, 0
        self._value = 0.0

    def turn_off(self, reason):
        """Stop splitting for this reason; the times so far are not used."""
        self._reason, self.thread = reason, None

    def fail(self, error):
        """Stop splitting because of an error in this file."""
        self.turn_off(f"nodesweep_budget.py failed with {type(error).__name__}")

    def _lap(self, part, now=None):
        """Add the time from the last event until `now` (default: the present) to a part."""
        self._laps.lap(part, self._laps.mark(now))

    # Events

    def pause(self):
        """Exclude the time until resume(); no step may end in between."""
        if threading.get_ident() == self.thread:
            self._lap(self._place)
            self._paused_at = time.perf_counter()
            self.thread, self._is_paused = None, True

    def resume(self):
        """Resume after a pause; do nothing if not paused."""
        if self._is_paused:
            self.thread, self._is_paused = threading.get_ident(), False
            self._paused_seconds += time.perf_counter() - self._paused_at
            self._laps.restart(self._laps.mark())

    def fetched(self, loader, began):
        """Record the arrival of a batch that was requested from the loader at `began`."""
        if threading.get_ident() != self.thread:
            return
        self._laps.lap_until(self._place, began)
        self._lap(("data", loader))
        self._place = ("after", loader)

    def begin_backward(self, tensors, queue_callback):
        """Record the start of a backward pass; return False if it will not be split."""
        if threading.get_ident() != self.thread or self._in_backward:
            return False
        self._lap("forward")
        self._in_backward, self._marked = True, False
        if self.steps % self._every == 0:
            # an iterator is left alone, because only the pass may consume it
            root = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
            if getattr(root, "grad_fn", None) is not None:

                def queue(_):
                    with contextlib.suppress(Exception):  # after an error, this pass is not split
                        queue_callback(self._end_of_gradients)

                self._handle = root.register_hook(queue)
        return True

    def _end_of_gradients(self):
        # for GPUs, one of the autograd engine's threads calls this
        if self._in_backward and (self._is_on_gpu or threading.get_ident() == self.thread):
            self._lap("backward")
            self._marked = True

    def end_backward(self):
        """Record the end of a backward pass."""
        self._lap("reduction" if self._marked else "unsplit")
        try:
            network.after_backward(sys.modules["torch"])
        except Exception:  # the split goes on
            network.refuse()
        self._in_backward, self._place = False, "other"
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @contextlib.contextmanager
    def whole(self, part):
        """Assign the time of a block to a part, including the calls in it."""
        if threading.get_ident() != self.thread or self.is_inside:
            yield
            return
        self.is_inside, begin = True, self._laps.mark()
        try:
            yield
        finally:
            self.is_inside = False
            self._laps.carve(part, begin, self._laps.mark())

    def begin_step(self):
        """Record the start of an optimizer step."""
        if threading.get_ident() == self.thread:
            self._lap(self._place)

    def end_step(self, optimizer, now):
        """Record the end of an optimizer step at `now`."""
        flops.after_step(optimizer)
        try:
            if threading.get_ident() == self.thread:
                self._lap("optimizer", now)
                self._place = "other"
                self._count_step(now)
            elif self.thread is None and self._reason is None:
                self._begin(optimizer, now)
        except Exception as error:
            self.fail(error)

    def _begin(self, optimizer, now):
        devices = {
            parameter.device.type
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        if devices not in ({"cpu"}, {"cuda"}):
            self.turn_off(f"training on {' and '.join(sorted(devices))} is not split")
            return
        self._is_on_gpu = devices == {"cuda"}
        cuda = sys.modules["torch"].cuda if self._is_on_gpu else None
        self._laps = GpuLaps(cuda, self.turn_off) if self._is_on_gpu else CpuLaps(now)
        self._first_end, self._at_step = now, {}
        self.thread = threading.get_ident()

    def _count_step(self, now):
        self.steps += 1
        if self.steps in _PACES_AFTER:
            pace = (now - self._first_end - self._paused_seconds) / self.steps
            if pace < _LEAST_STEP_SECONDS:
                self.turn_off(f"steps under {1000 * _LEAST_STEP_SECONDS:.0f} ms are not split")
            elif pace < _SHORT_STEP_SECONDS:
                self._every = _EVERY_SHORT_STEP
        self._laps.end_step(self._take)

    def _take(self, seconds):
        """Keep the times by part at the end of a step."""
        self._at_step = seconds.copy()
        self._known_steps += 1
        if self._known_steps % self._steps_per_value == 0:
            value = seconds["reduction"] + seconds["collectives"]
            self._values.append(value - self._value)
            self._value = value
            if len(self._values) == _MOST_VALUES:
                pairs = zip(self._values[::2], self._values[1::2])  # noqa: B905
                self._values = array("d", map(sum, pairs))
                self._steps_per_value *= 2

    # The end

    def missing(self, world_size):
        """Return why this process's time was not split; None if it was."""
        self._laps.finish()
        if self._reason is not None:
            return self._reason
        if not self._at_step:
            return "it made only one optimizer step"
        if not self._at_step.get("backward"):
            return "no backward pass was seen"
        return "the number of its processes is unknown" if world_size is None else None

    def facts(self, start, training, world_size, rank):
        """Return this process's entry in `budget` of metrics.json; None if its time was not split.

        Args:
            start: Start of the process's train time, by time.perf_counter().
            training: The loaders of the training; others count as evaluation.
            world_size: Number of processes of the job; None if unknown.
            rank: The process's rank.
        """
        if self.missing(world_size) is not None:
            return None
        found = dict(self._at_step)
        parts = dict.fromkeys(PARTS, 0.0)
        parts["start"] = self._first_end - start
        reduction, gradients = found.pop("reduction", 0.0), found.pop("backward", 0.0)
        unsplit = found.pop("unsplit", 0.0)
        share = reduction / (reduction + gradients) if reduction else 0.0
        if world_size == 1:
            share, gradients, reduction = 0.0, gradients + reduction, 0.0
        parts["backward"] = gradients + unsplit * (1 - share)
        parts["communication"] = reduction + unsplit * share + found.pop("collectives", 0.0)
        for place, seconds in found.items():
            if isinstance(place, str):
                parts[place] += seconds
            elif place[1] not in training:
                parts["evaluation"] += seconds
            else:
                parts["data" if place[0] == "data" else "forward"] += seconds
        return {
            "rank": rank,
            "node": os.environ.get("SM_CURRENT_HOST") or os.environ.get("NODE_RANK"),  # Ray Train's
            "seconds": {part: round(seconds, 6) for part, seconds in parts.items()},
            "communication_seconds": [round(value, 6) for value in self._values],
            "steps_per_value": self._steps_per_value,
            "split_every": self._every,
            **network.facts(),
        }


budget = Budget()


def install(torch, is_compiling):
    """Install the hooks in torch, which itself has public ones only for optimizer steps.

    While torch.compile traces the wrappers, they only call the original function.
    """
    flops.install(torch)
    # torch.optim deletes its attribute `optimizer`
    register = sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook

    def before_step(optimizer, args, kwargs):
        if not is_compiling():
            budget.begin_step()

    register(before_step)
    _watch_backward(torch, is_compiling)
    _time_calls(torch, ["save"], "checkpoint", is_compiling)
    if torch.distributed.is_available():
        _time_calls(torch.distributed, COLLECTIVES, "collectives", is_compiling)
        _time_calls(torch.distributed.Work, ["wait"], "collectives", is_compiling)
        install_network(torch)


def watch_saves(module):
    """Time the saving functions that an imported framework has."""
    for path, names in SAVES[module.__name__].items():
        owner = module
        for name in path.split("."):
            owner = getattr(owner, name, None)
        _time_calls(owner, names, "checkpoint", bool)  # none is traced by torch.compile


def _watch_backward(torch, is_compiling):
    original = torch.autograd.backward
    # There is no public equivalent; FSDP and DDP's communication hooks use it, too.
    queue_callback = torch.autograd.Variable._execution_engine.queue_callback

    @functools.wraps(original)
    def backward(*args, **kwargs):
        if is_compiling():
            return original(*args, **kwargs)
        flops.before_backward(args, kwargs)
        try:
            tensors = args[0] if args else kwargs["tensors"]
            is_training = budget.begin_backward(tensors, queue_callback)
        except Exception as error:
            budget.fail(error)
            is_training = False
        try:
            return original(*args, **kwargs)
        finally:
            if is_training:
                budget.end_backward()

    torch.autograd.backward = backward
    differentiate = torch.autograd.grad

    @functools.wraps(differentiate)
    def grad(*args, **kwargs):
        if not is_compiling():
            flops.before_gradients()
        return differentiate(*args, **kwargs)

    torch.autograd.grad = grad
    builtins = sys.modules.get("torch.jit._builtins")
    if builtins is not None:  # TorchScript identifies functions by id
        builtins._register_builtin(backward, "aten::backward")
        builtins._register_builtin(grad, "aten::grad")


def _time_calls(owner, names, part, is_compiling):
    for name in names:
        call = getattr(owner, name, None)
        if call is not None:
            timed = _timed(call, part, is_compiling)
            if isinstance(owner, ModuleType):  # pickle looks functions up by these names
                timed.__module__, timed.__qualname__ = owner.__name__, name
            setattr(owner, name, timed)


def _timed(call, part, is_compiling):
    @functools.wraps(call)
    def timed(*args, **kwargs):
        if is_compiling() or threading.get_ident() != budget.thread or budget.is_inside:
            return call(*args, **kwargs)
        with budget.whole(part):
            return call(*args, **kwargs)

    return timed
