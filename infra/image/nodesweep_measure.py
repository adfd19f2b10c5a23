"""Measure a training script that has no clock of its own, without changing it.

sitecustomize.py calls `watch()` when Python starts; once the program has imported torch, three
hooks record the time: PyTorch's public hook after every optimizer step (torch 2.0 or later), the
start of a DataLoader's iteration, and its batches. At exit, rank 0 writes metrics.json with the
section `observed`, unless the program wrote one:

    train_seconds    from the first request for data of the training to the end of the last
                     optimizer step, evaluations between the steps included
    observed         starts_at: data_request, or first_step_end without a DataLoader (then at least
                     100 steps); data_wait_seconds; torch; batch_size of this process, if its
                     samples were counted; or only not_measured, the reason, and the error
                     with which the program ended, if there was one
    budget           the parts of rank 0's time; every other rank writes its own to a file; if
                     there is no budget, observed has the reason in not_split

Nothing here may change a result, print, or raise: an error is recorded as the reason. A traceback
out of a DataLoader shows one more frame. NODESWEEP_MEASURE=off or helper turns the measurement off,
and so do the variables with which a sweep ends runs early, because only the helper
(nodesweep_clock.py) can do that.
"""

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Mapping

from nodesweep_budget import FILE as PARTS_FILE
from nodesweep_budget import SAVES, budget, watch_saves
from nodesweep_budget import install as install_budget
from nodesweep_flops import flops

SWITCH = "NODESWEEP_MEASURE"
_ENDS_EARLY = ("NODESWEEP_PROBE_PRECISION", "NODESWEEP_RUN_STEPS", "NODESWEEP_RUN_SECONDS")
FILE, SECTION = "metrics.json", "observed"
# If the start of the first step is unknown, one step is missing from the time: 1% of 100.
STEPS_WITHOUT_START = 100
# An iterator whose first batch is requested later than this was created before the training loop.
_SAME_LOOP_SECONDS = 0.1
_MOST_DEPTH, _MOST_FOLDERS = 3, 200  # limits of the search for the program's own metrics.json
_UNSEEN = (
    "no step of a torch.optim optimizer was seen: the program has its own update rule, replaces "
    "optimizer.step, compiles the step, captures it as a CUDA graph, or trains in a forked process"
)
_NOT_LOADED = (
    "no process that trained and ended normally had loaded nodesweep_measure.py: the program is "
    "not Python, runs as python -S, -I or -E, has another sitecustomize first on PYTHONPATH, "
    "trains in a forked process, or ends with os._exit"
)
_SEVERAL = (
    "several processes of the program trained as rank 0, for instance one after another or in "
    "two runs with the same output folder, so none of their times is the job's"
)


class Loader:
    """Deliveries of one DataLoader.

    `started` is when its iteration began or, if that was clearly later, when its first batch was
    requested. `asked` is the same, except that a wait for other loaders that are iterated together
    with this one, as in zip(), does not postpone it.
    """

    def __init__(self, batch_size, replicas):
        self.batch_size, self.replicas = batch_size, replicas
        self.steps = 0  # optimizer steps for which it delivered the last batch
        self.iterations = 0
        self.overtaken = 0  # batches followed by another loader's batch before any step
        self.restart(None)

    def restart(self, started):
        """Discard deliveries before the training, such as a sample batch."""
        self.started = self.asked = started
        self.opened, self.others_seconds, self.is_joined = None, 0.0, False
        self.batches = self.samples = 0
        self.waited_seconds = 0.0
        self.is_counted, self.had_short_batch, self.thread = True, False, None

    def count(self, batch):
        """Count a batch, and its samples unless a batch before an iteration's last was short."""
        self.batches += 1
        length = None
        if self.is_counted and self.batch_size:
            with contextlib.suppress(Exception):  # the batch's class may be the program's own
                length = _length(batch)
        if length is None or length > self.batch_size or self.had_short_batch:
            self.is_counted = False
        else:
            self.samples += length
            self.had_short_batch = length < self.batch_size


class Watch:
    """The training of one process, as recorded by the hooks."""

    def __init__(self):
        self.reason = None
        self.torch = self.library = None
        self._is_off = False
        self.forks, self.script = 0, ""
        self.has_written = False
        self._parents_events = []
        self._reset()

    def _reset(self):
        self.pid = os.getpid()
        self._times, self._optimizers = array("d"), array("H")
        self._kinds, self._numbers = 0, weakref.WeakKeyDictionary()  # number by optimizer
        self._group = self._first_loader = self._delivered = self._thread = None
        self._loaders, self._by_loader = [], weakref.WeakKeyDictionary()
        self._first_event = self._last_event = self._first_event_at = None
        budget.reset()

    def after_fork(self):
        """Reset in a forked child, because it may be the process that trains."""
        # Never freed: the child cannot use its parent's CUDA context.
        self._parents_events += [self._first_event, self._last_event]
        self._reset()

    def fail(self, error):
        """Stop measuring after an error in this file; the program continues."""
        self.turn_off(f"nodesweep_measure.py failed with {type(error).__name__}: {error}")

    def turn_off(self, reason):
        """Ignore later events. The hooks stay, because torch may be iterating over them."""
        self.reason, self._is_off = self.reason or reason, True

    # The three hooks

    def on_step(self, optimizer):
        """Record the end of an optimizer step."""
        now = time.perf_counter()
        if self._is_off:
            return
        cuda = self.torch.cuda
        if not self._times and self._begin():
            return
        if cuda.is_initialized():
            if cuda.is_current_stream_capturing():
                self.turn_off("the optimizer step was captured as a CUDA graph")
                return
            now = self._record_on_gpu(cuda, now)
        number = self._numbers.get(optimizer)
        if number is None:  # not an id, which is reused after an optimizer is deleted
            number = self._numbers[optimizer] = self._kinds
            self._kinds += 1
        self._optimizers.append(number)
        self._times.append(now)
        budget.end_step(optimizer, now)
        if self._delivered is not None:
            self._delivered.steps += 1
            self._delivered = None
        if self._group is None:
            self._group = self.library._group()

    def _begin(self):
        """Prepare for the first step; return True if this training is not measured."""
        if "nodesweep_clock" in sys.modules:
            self.turn_off("the program uses nodesweep_clock")
        elif "torch_xla" in sys.modules:
            self.turn_off("torch_xla executes steps after the program has issued them")
        self._first_loader, self._thread = self._delivered, threading.get_ident()
        if _is_child():  # a forked child ends with os._exit(), but runs finalizers first
            sys.modules["multiprocessing.util"].Finalize(None, write, exitpriority=-1)
        return self._is_off

    def _record_on_gpu(self, cuda, now):
        """Record the step in the GPU's stream and return its time; only the first step waits."""
        if self._first_event is None:
            cuda.synchronize()
            now = time.perf_counter()
            self._first_event, self._last_event = (cuda.Event(enable_timing=True) for _ in "12")
            self._first_event.record()
            self._first_event_at = now
        self._last_event.record()
        return now

    def on_iteration(self, data_loader, iterator, began):
        """Record that a DataLoader's iteration began."""
        if self._is_off or self.pid != os.getpid() or not hasattr(iterator, "__dict__"):
            return  # a generator comes from the program, not from torch
        loader = self._by_loader.get(data_loader)
        if loader is None:
            sampler = getattr(data_loader, "batch_sampler", None)
            replicas = getattr(getattr(data_loader, "sampler", None), "num_replicas", None)
            loader = Loader(getattr(sampler, "batch_size", None), replicas)
            self._by_loader[data_loader] = loader
            self._loaders.append(loader)
        now = time.perf_counter()
        if not self._times:
            loader.restart(began)
            loader.is_joined = self._let_others_wait(loader, now - began, is_start=True)
        loader.iterations += 1
        loader.had_short_batch, loader.opened = False, now
        iterator._nodesweep_loader = loader
        budget.fetched(loader, began)

    def on_batch(self, loader, began, batch):
        """Record a delivered batch."""
        if self._is_off:
            return
        now = time.perf_counter()
        if loader.opened is not None:
            if not self._times:
                if began - loader.opened > _SAME_LOOP_SECONDS:
                    loader.started = began
                    if began - loader.opened - loader.others_seconds > _SAME_LOOP_SECONDS:
                        loader.asked = began
                self._let_others_wait(loader, now - began)
            loader.opened = None
        loader.thread = threading.get_ident()
        loader.waited_seconds += now - began
        loader.count(batch)
        if self._delivered is not None and self._delivered is not loader:
            self._delivered.overtaken += 1
        self._delivered = loader
        budget.fetched(loader, began)

    def _let_others_wait(self, loader, seconds, is_start=False):
        """Record that loaders with no batch yet waited; return True if there are any."""
        others = [each for each in self._loaders if each is not loader]
        waiting = [each for each in others if each.opened is not None]
        for each in waiting:
            each.others_seconds += seconds
            each.is_joined |= is_start
        return bool(waiting)

    # The end

    def facts(self):
        """Return the contents of metrics.json: the measurement, or the reason there is none."""
        if not self._times or self.reason is not None:
            return self._without(self.reason or self._untrained())
        if getattr(sys, "last_type", None) is not None:
            error = sys.last_type.__name__
            return self._without(f"the program ended with {error}", error=error)
        first, last = self._times[0], self._last_step_at()
        training = self._training_loaders()
        by_loaders = sum(each.steps for each in self._loaders)
        if self._first_loader is None and by_loaders * 2 >= len(self._times):
            return self._without(
                "its first optimizer step came before its DataLoader delivered a batch"
            )
        often = max(2, len(self._times) / 2)
        together = [each for each in self._loaders if each.overtaken >= often]
        if together and not (training and all(each.is_joined for each in together)):
            return self._without(
                "its steps use batches of several DataLoaders that were not started together"
            )
        started = self._first_loader.started if training else None
        if together:
            training += [each for each in together if each not in training]
            started = min(each.asked for each in (self._first_loader, *together))
        if started is None and len(self._times) < STEPS_WITHOUT_START:
            return self._without(
                "its batches do not come from a torch.utils.data.DataLoader, so the start of its "
                f"first step is unknown, and its {len(self._times)} steps are fewer than the "
                f"{STEPS_WITHOUT_START} needed without it"
            )
        start = first if started is None else started
        metrics = self._metrics(start, last, training)
        # another thread may fetch the batches ahead
        is_waiting = training and all(each.thread == self._thread for each in training)
        waited = sum(each.waited_seconds for each in training) if is_waiting else None
        metrics["data_wait_share"] = None if waited is None else min(1.0, waited / (last - start))
        metrics[SECTION] = {
            "starts_at": "data_request" if started is not None else "first_step_end",
            "data_wait_seconds": waited,
            "torch": str(self.torch.__version__),
        }
        if len(training) == 1 and metrics["samples"]["processed"]:
            metrics[SECTION]["batch_size"] = training[0].batch_size
        size = metrics["world"]["world_size"]
        if 1 < self._kinds == len(set(self._optimizers)) and metrics["steps"] == len(self._times):
            metrics["flops"] = {"not_counted": "it trains several times"}
        else:
            metrics["flops"] = flops.facts()
        by_part = budget.facts(start, training, size, self.rank)
        if by_part is None:
            metrics[SECTION]["not_split"] = budget.missing(size)
        else:
            metrics["budget"] = [by_part]
        return metrics

    def _metrics(self, start, last, training):
        """Return the metrics that the helper would write, computed by the helper's own code."""
        clock = self.library.Clock()
        clock._start_unix_seconds = time.time() - (time.perf_counter() - start)
        steps, ends = self._steps()
        clock._step_seconds = [end - begin for begin, end in zip([start, *ends], ends)]  # noqa: B905
        size = self._group[0] if self._group else clock._alone()
        batches = sum(each.batches for each in training)
        if training and steps is not None and _are_in_parts(steps, batches, training):
            steps = None
        # if num_replicas is below the world size, processes share batches: the model is split
        clock._is_counted = batches == steps and all(
            each.is_counted and each.replicas in (None, size) for each in training
        )
        clock._samples = sum(each.samples for each in training)
        metrics = clock._metrics(last - start, size)
        metrics["steps"] = steps
        if steps is None:
            metrics["steady"]["step_seconds"] = None
        return metrics

    def _steps(self):
        """Return the number of steps and the times at which they ended.

        The number is None if several optimizers alternate unevenly. If optimizers are used one
        after the other, e.g. in a second training run, all of their steps are counted.
        """
        order, kinds = list(self._optimizers), self._kinds
        changes = sum(order[at] != order[at - 1] for at in range(1, len(order)))
        if changes < kinds:
            return len(order), list(self._times)
        ends = [self._times[at] for at, number in enumerate(order) if number == order[-1]]
        if len(ends) * kinds != len(order):
            return None, list(self._times)
        return len(ends), ends

    def _last_step_at(self):
        if self._last_event is None:
            return self._times[-1]
        self._last_event.synchronize()
        on_gpu = self._first_event.elapsed_time(self._last_event) / 1000
        return max(self._times[-1], self._first_event_at + on_gpu)

    def _training_loaders(self):
        """Return the loaders that deliver to steps, not to evaluations.

        The list is empty if the batches come from elsewhere. Then the loader of the first step
        delivers only once, or all loaders together deliver to less than a tenth of the steps.
        """
        made = len(self._times)
        delivered, most = 0, 0
        for each in self._loaders:
            delivered, most = delivered + each.steps, max(most, each.steps)
        first = self._first_loader
        if first is None or first.steps < min(2, made) or delivered * 10 < made:
            return []
        return [each for each in self._loaders if each.steps * 2 >= max(1, min(most, each.batches))]

    def _untrained(self):
        if self.forks and self.torch is None:
            return (
                "the program forked before it imported torch; it may have trained in a forked "
                "process, which is not measured"
            )
        return "the program never imported torch" if self.torch is None else _UNSEEN

    @staticmethod
    def _without(reason, **more):
        return {"schema_version": 1, SECTION: {"not_measured": reason, **more}}

    @property
    def has_trained(self):
        return bool(self._times)

    @property
    def rank(self):
        return self._group[1] if self._group else self.library._rank_by_launcher()


watched = Watch()


def watch():
    """Measure the training in this process, if there is one and the sweep allows it."""
    if not _is_on():
        return
    watched.script = sys.argv[0]  # before the program changes it
    sys.meta_path.insert(0, _Imports())
    os.register_at_fork(after_in_child=watched.after_fork, after_in_parent=_count_fork)
    atexit.register(write)  # the first to register runs last, after the program's own


def _is_on():
    asked = os.environ.get(SWITCH) or "auto"
    return asked == "auto" and not any(map(os.environ.get, _ENDS_EARLY))


def _count_fork():
    watched.forks += 1


class _Imports:
    """A finder that delegates to others, and installs hooks once torch or a framework is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch" and name not in SAVES:
            return None
        for finder in sys.meta_path:
            spec = None
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_after(spec.loader)
                return spec
        return None


def _call_after(loader):
    execute = getattr(loader, "exec_module", None)

    def exec_module(module):
        execute(module)
        try:
            if module.__name__ in SAVES:
                watch_saves(module)
            elif watched.torch is None:
                install(module)
        except Exception as error:
            (budget if module.__name__ in SAVES else watched).fail(error)

    if execute is not None and hasattr(loader, "__dict__"):
        loader.exec_module = exec_module


def install(torch):
    """Install the hooks in torch."""
    watched.torch = torch
    watched.library = _load_clock()
    optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the attribute
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        watched.reason = (
            f"torch {torch.__version__} has no hook for optimizer steps: 2.0 or later is required"
        )
        return
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or bool

    def after_step(optimizer, args, kwargs):
        if is_compiling():  # otherwise, torch.compile would trace the hook
            return
        try:
            watched.on_step(optimizer)
        except Exception as error:
            watched.fail(error)

    register(after_step)
    _watch_loaders(torch.utils.data.DataLoader)
    try:
        install_budget(torch, is_compiling)
    except Exception as error:  # the time is measured without its parts
        budget.fail(error)


def _watch_loaders(DataLoader):
    """Replace DataLoader.__iter__, and __next__ of its iterators, for lack of a PyTorch hook.

    Tested with torch 2.0 to 2.14. Iterators of other packages' classes are left alone.
    """
    iterate = DataLoader.__iter__

    @functools.wraps(iterate)
    def __iter__(self):
        began = time.perf_counter()
        iterator = iterate(self)
        try:
            _watch_iterators(type(iterator))
            watched.on_iteration(self, iterator, began)
        except Exception as error:
            watched.fail(error)
        return iterator

    DataLoader.__iter__ = __iter__


def _watch_iterators(kind):
    for owner in kind.__mro__:
        fetch = vars(owner).get("__next__")
        if fetch is not None:
            break
    else:
        return
    if hasattr(fetch, "_is_watched") or not owner.__module__.startswith("torch."):
        return

    @functools.wraps(fetch)
    def __next__(self):
        began = time.perf_counter()
        batch = fetch(self)
        try:
            loader = self.__dict__.get("_nodesweep_loader")
            if loader is not None:
                watched.on_batch(loader, began, batch)
        except Exception as error:
            watched.fail(error)
        return batch

    __next__._is_watched = True
    owner.__next__ = __next__


def _are_in_parts(steps, batches, loaders):
    """Return True if a step consists of several calls, or a batch takes several steps.

    An optimizer may be called once per parameter group. One step per iteration may have no new
    batch, because a loader that prefetches has none left before the last step of an epoch.
    """
    without_batch = steps - sum(each.steps for each in loaders)
    return steps > batches or without_batch > sum(each.iterations for each in loaders)


def _length(batch):
    """Return the length of the first tensor in a batch, or None.

    No other code of the program's own classes is called, because it can have side effects.
    """
    for _ in range(4):
        shape = getattr(batch, "shape", None)
        if isinstance(shape, tuple):  # torch.Size is a tuple
            return int(shape[0]) if shape else None
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        else:
            return None
    return None


def _load_clock():
    """Load the helper under a different name, so that the script can import its own copy."""
    from importlib.util import module_from_spec, spec_from_file_location

    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nodesweep_clock.py")
    spec = spec_from_file_location("nodesweep_clock_of_the_image", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write():
    """Write this rank's file at the end of the process, unless the program wrote metrics.json.

    A program whose launcher kills its processes, such as Ray Train, calls this after the training.
    """
    try:
        if watched.pid == os.getpid() and (watched.has_trained or _is_entry_point()):
            if watched.library is None:
                watched.library = _load_clock()
            if watched.rank == 0:
                _write(watched.facts())
            else:
                _write_budget(watched.facts())
    except Exception:  # the program must not fail at its exit
        pass
    with contextlib.suppress(Exception):
        if watched.pid == os.getpid() and watched.library is not None:
            watched.library.let_gloo_finish()


def explain_absence():
    """Write a reason if no process wrote a file; nodesweep_start calls this after the program."""
    try:
        watched.library = _load_clock()
        if _is_on() and watched.rank == 0:
            _write(watched._without(_NOT_LOADED))
    except Exception:  # the job has succeeded
        pass


def _is_entry_point():
    """Return True if this process runs the job's script itself, not its launcher or a child."""
    name = os.path.basename(os.environ.get("SM_USER_ENTRY_POINT", ""))
    return bool(name) and os.path.basename(watched.script) == name and not _is_child()


def _is_child():
    """Return True in a process that multiprocessing started."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _write(facts):
    """Write the file atomically; replace a reason with a measurement, but never the program's file.

    If two processes each measured a training run, a reason replaces both measurements.
    """
    folder = os.environ.get("SM_OUTPUT_DATA_DIR")
    if not folder:
        return
    known = _read_section(folder)
    if known is not None:
        is_final = watched.has_written or known.get("not_measured") == _SEVERAL
        if not known or is_final or "train_seconds" not in facts:
            return
        if "not_measured" not in known:
            facts = watched._without(_SEVERAL)
    watched.library._write(folder, facts)
    watched.has_written = "train_seconds" in facts


def _write_budget(facts):
    """Write the parts of this rank's time, which are ignored if the program has a metrics.json."""
    folder = os.environ.get("SM_OUTPUT_DATA_DIR")
    if folder and "budget" in facts:
        [parts] = facts["budget"]
        watched.library._write(folder, parts, PARTS_FILE.format(rank=parts["rank"]))


def _read_section(folder):
    """Return this module's section of metrics.json; {} if it has none, None if it is missing."""
    import json

    for found, (place, folders, files) in enumerate(os.walk(folder)):
        if FILE in files:
            try:
                path = os.path.join(place, FILE)
                with open(path if os.path.isfile(path) else os.devnull, encoding="utf-8") as stream:
                    section = json.load(stream)[SECTION]
                return section if isinstance(section, dict) else {}
            except (OSError, ValueError, KeyError, TypeError):
                return {}
        depth = os.path.relpath(place, folder).count(os.sep) + (place != folder)
        if depth >= _MOST_DEPTH or found > _MOST_FOLDERS:
            del folders[:]
    return None
