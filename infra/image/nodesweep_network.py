"""Time all-reduces of several sizes, and record what a DistributedDataParallel exchanges per step.

A step shows only the part of the gradients' all-reduces that its backward pass does not hide. To
predict the step on more nodes, their whole duration must be known. So before the training, all
processes of the job all-reduce zeros of SIZES_BYTES a few times, from the smallest size to the
first that takes LONG_SECONDS or more: about 1 s at most on a network with a steady bandwidth.

Only processes that are certain to do it together may time all-reduces: the shipped program's, and
the processes that nodesweep_exchange.py starts before a job's own program. In the program, nothing
is sent; its only DistributedDataParallel is examined at its first exchange, and its exchanges are
counted.
"""

import contextlib
import functools
import json
import mmap
import os
import time
import weakref

TIMED = "NODESWEEP_ALL_REDUCES"  # environment variable with the times, for a job's own program
SIZES_BYTES = tuple(4**power for power in range(6, 13))  # 4 KiB to 16 MiB
LONG_SECONDS = 0.05
_REPEATS = 4
# Of DistributedDataParallel; from PyTorch 2.4 on, only if no size was chosen.
_FIRST_BUCKET_BYTES = 1 << 20


def time_all_reduces(torch, group=None):
    """Time all-reduces on CPUs; every process of the group must call this at the same time.

    A process that cannot allocate the largest tensor tells the others by the first all-reduce, and
    nothing is timed. The tensor is not from malloc: after a process frees a block of this size,
    glibc keeps more memory instead of returning it to the kernel. Then the training would take
    less time than on one node, where nothing is timed.

    Args:
        torch: The module.
        group: The process group; None for the default one.

    Returns:
        The number of processes and, by size, [bytes, seconds of the slowest process in the fastest
        repeat]; None if nothing was timed.
    """
    dist = torch.distributed
    largest = None
    with contextlib.suppress(OSError, RuntimeError):  # out of memory
        memory = mmap.mmap(-1, SIZES_BYTES[-1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        largest = torch.frombuffer(memory, dtype=torch.float32)
    flag = torch.full((1,), float(largest is None), dtype=torch.float32)
    dist.all_reduce(flag, dist.ReduceOp.MAX, group)
    if flag.item():
        return None
    found = []
    for size in SIZES_BYTES:
        tensor, seconds = largest[: size // 4], torch.zeros(_REPEATS, dtype=torch.float32)
        for repeat in range(_REPEATS):
            began = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            seconds[repeat] = time.perf_counter() - began
        dist.all_reduce(seconds, dist.ReduceOp.MAX, group)
        least = min(seconds.tolist())
        found.append([size, round(least, 7)])
        if least >= LONG_SECONDS:  # the same in all processes
            break
    return {"world_size": dist.get_world_size(group), "all_reduce": found}


class Network:
    """The exchanges of this process, and the times of all-reduces of several sizes."""

    def __init__(self):
        self.timed = None  # time_all_reduces()
        self._models, self._is_usual = 0, True
        self._model, self._buckets, self._world_size = None, [], None
        self._exchanges = 0

    def watch(self, model):
        """Observe a DistributedDataParallel, which is still being constructed."""
        self._models += 1
        self._model = weakref.ref(model)

    def refuse(self):
        """Record that gradients are exchanged in a different way."""
        self._is_usual = False

    def after_backward(self, torch):
        """Count the exchange of a backward pass, unless it only accumulated gradients."""
        model = self._model and self._model()
        if model is None or not self._is_usual or not model.require_backward_grad_sync:
            return
        if not self._exchanges:
            self._is_usual = _is_usual(torch, model)
            self._world_size = torch.distributed.get_world_size(model.process_group)
            parameters = [each for each in model.module.parameters() if each.requires_grad]
            sizes = [each.numel() * each.element_size() for each in reversed(parameters)]
            self._buckets = _fill_buckets(sizes, _limits(model))
        self._exchanges += 1

    def facts(self):
        """Return the gradients' buckets, the seconds by size, and the exchanges of split passes.

        An empty dict if no all-reduces were timed among the same processes, or if there was not
        exactly one DistributedDataParallel that exchanges float32 gradients in its usual way.
        """
        timed = self.timed
        if timed is None and TIMED in os.environ:
            with contextlib.suppress(ValueError):
                timed = json.loads(os.environ[TIMED])
        if self._models != 1 or not self._is_usual or not isinstance(timed, dict):
            return {}
        if timed.get("world_size") != self._world_size or not timed.get("all_reduce"):
            return {}
        return {
            "network": {
                "bucket_bytes": self._buckets,
                "all_reduce": timed["all_reduce"],
                "exchanges": self._exchanges,
            }
        }


network = Network()


def _is_usual(torch, model):
    """Return True if all float32 gradients on CPUs are all-reduced by gloo in all processes."""
    dist = torch.distributed
    group = model.process_group
    parameters = [each for each in model.module.parameters() if each.requires_grad]
    return (
        dist.get_world_size(group) == dist.get_world_size() > 1
        and dist.get_backend(group) == "gloo"
        and {each.device.type for each in parameters} == {"cpu"}
        and {each.dtype for each in parameters} == {torch.float32}
        and not any(getattr(each, "sparse", False) for each in model.module.modules())
        and not model.parameters_to_ignore
        and not model.find_unused_parameters
        and getattr(model, "mixed_precision", None) is None
    )


def _limits(model):
    """Return the bytes that fill each bucket; the last number is for all further buckets."""
    cap = model.bucket_bytes_cap
    if getattr(model, "bucket_bytes_cap_default", True):
        return [_FIRST_BUCKET_BYTES, cap]
    return list(getattr(model, "bucket_bytes_cap_list", ())) or [cap]


def _fill_buckets(tensors_bytes, limits_bytes):
    """Return the bytes of each bucket, as DistributedDataParallel fills them in this order."""
    buckets, filling = [], 0
    for each in tensors_bytes:
        filling += each
        if filling >= limits_bytes[min(len(buckets), len(limits_bytes) - 1)]:
            buckets.append(filling)
            filling = 0
    return [*buckets, filling] if filling else buckets


def install(torch):
    """Watch each DistributedDataParallel that is constructed; nothing is sent."""
    wrapper = torch.nn.parallel.DistributedDataParallel
    register = wrapper.register_comm_hook

    def watch(module, name, submodule):
        if name == "module" and isinstance(module, wrapper):
            network.watch(module)

    torch.nn.modules.module.register_module_module_registration_hook(watch)

    @functools.wraps(register)
    def register_comm_hook(self, *args, **kwargs):
        network.refuse()
        return register(self, *args, **kwargs)

    wrapper.register_comm_hook = register_comm_hook
