"""Time a training program and write the metrics.json that nodesweep reads.

Copy this file next to your training script; nodesweep's own image already has it:

    from nodesweep_clock import clock

    with clock():                           # in every process, around the training and nothing else
        for batch in batches:
            train_on(batch)
            clock.step(len(batch))          # after each optimizer step, with this process's samples
        clock.metric("accuracy", 0.93, goal="maximize")

To support `sweep.design: probe`, which measures some steps and projects the rest, pass the number
of steps and leave the loop when `step` returns True. `step` also returns True under
`training.baseline_seconds`, but never in other sweeps:

    with clock(steps=epochs * len(batches), epoch_steps=len(batches)):  # of a full run, of an epoch
        for batch in batches:
            train_on(batch)
            if clock.step(len(batch)):      # the same value in every process
                break

The module needs Python 3.8 and nothing else, and works unchanged with torch.distributed, Lightning,
accelerate, DeepSpeed, Horovod, and mpi4py: whichever is loaded provides the number of processes. It
communicates only if the run can end early: in a probe, and under `training.baseline_seconds`, that
library broadcasts rank 0's decision after some steps, which are the same in all processes. Rank 0
writes the file unless the training raised; every process prints a line. docs/metrics.schema.json
describes the file; a report needs only `schema_version`, `train_seconds`, and `world`.
"""

import atexit
import json
import math
import os
import sys
import time
from operator import mul
from statistics import mean, median, stdev

SCHEMA_VERSION = 1
WARM_UP_STEPS = 10
# A steady window with fewer steps and fewer seconds is marked as short in metrics.json.
ENOUGH_STEPS, ENOUGH_SECONDS = 100, 60.0
# Variables of a probe: the largest half-width as a share of the mean step, and the last step, also
# as a share of a full run.
PROBE_PRECISION, PROBE_MAX_STEPS = "NODESWEEP_PROBE_PRECISION", "NODESWEEP_PROBE_MAX_STEPS"
PROBE_MAX_SHARE = "NODESWEEP_PROBE_MAX_SHARE"
# Variables of training.baseline_seconds: a number of steps, or a number of seconds to fill with
# steps at the pace of the first ones.
RUN_STEPS, RUN_SECONDS = "NODESWEEP_RUN_STEPS", "NODESWEEP_RUN_SECONDS"
_LEAST_PACED_STEPS, _LEAST_PACED_SHARE, _PACE_LOOKS_GROW_BY = 3, 0.15, 1.5
_LEAST_STEADY_STEPS, _BATCHES, _LOOKS_GROW_BY = 20, 10, 1.25
_T_OF_BATCHES = 2.262  # Student's t, two-sided 95%, 9 degrees of freedom (ten batches)
_TREND_OF_BATCHES = 29  # Mann-Kendall: ten values without a trend have |S| >= 29 in 0.9% of cases
_MOST_BOUNDARY_STEPS = 10  # first steps of an epoch, which a restarted loader may slow down
_GROUP_LIBRARIES = ("horovod", "mpi4py", "smdistributed", "torch_xla", "jax", "tensorflow")


def mean_step(seconds):
    """Return the mean of steady step times and the half-width of its 95% interval.

    The half-width is None for fewer than 20 steps. It is the larger of two estimates that allow for
    autocorrelation: one from ten batch means (Schmeiser, Operations Research 30(3), 1982, pp.
    556-568), and one from an AR(1) model with the measured lag-1 autocorrelation.
    """
    n = len(seconds)
    if n < _LEAST_STEADY_STEPS:
        return (mean(seconds) if n else None), None
    size, middle, spread = n // _BATCHES, mean(seconds), stdev(seconds)
    if spread == 0:
        return middle, 0.0
    used = seconds[n - size * _BATCHES :]
    batches = [mean(used[start : start + size]) for start in range(0, len(used), size)]
    away = [second - middle for second in seconds]
    neighbours = sum(map(mul, away, away[1:])) / sum(map(mul, away, away))
    alike = min(0.99, max(0.0, neighbours + (1 + 3 * neighbours) / n))  # bias-corrected
    by_neighbours = 1.96 * spread * math.sqrt((1 + alike) / (1 - alike) / n)
    return middle, max(_T_OF_BATCHES * stdev(batches) / math.sqrt(_BATCHES), by_neighbours)


def step_trend(seconds):
    """Return the change over steady step times as a share of their mean; 0.0 without a trend.

    The result is None for fewer than 20 steps. Since step times are autocorrelated, the trend is
    tested on ten batch means: Mann-Kendall at 1% (Mann, Econometrica 13(3), 1945, pp. 245-259), and
    nine times the slope of Theil and Sen (Sen, JASA 63(324), 1968, pp. 1379-1389).
    """
    size = len(seconds) // _BATCHES
    if size < 2:
        return None
    used = seconds[len(seconds) - size * _BATCHES :]
    means = [mean(used[start : start + size]) for start in range(0, len(used), size)]
    slopes = [(means[j] - means[i]) / (j - i) for j in range(_BATCHES) for i in range(j)]
    if abs(sum((slope > 0) - (slope < 0) for slope in slopes)) < _TREND_OF_BATCHES:
        return 0.0
    return (_BATCHES - 1) * median(slopes) / mean(means)


class Probe:
    """Decides when a run can end because its steady step time is precise enough.

    It is called after every step, but decides only after some steps, which are the same in every
    process.
    """

    def __init__(self, precision, max_steps, warm_up_steps=WARM_UP_STEPS, max_share=None):
        self.precision, self.max_steps, self._max_share = precision, max_steps, max_share
        self.ended, self.epoch_steps, self._last_step = "complete", None, max_steps
        self._warm_up_steps, self._look_at = warm_up_steps, _LEAST_STEADY_STEPS

    @classmethod
    def from_environment(cls, warm_up_steps=WARM_UP_STEPS, environment=os.environ):
        """Return the probe that the sweep requests; None for a full run."""
        if not environment.get(PROBE_PRECISION):
            return None
        precision, most = float(environment[PROBE_PRECISION]), int(environment[PROBE_MAX_STEPS])
        share = environment.get(PROBE_MAX_SHARE)
        return cls(precision, most, warm_up_steps, float(share) if share else None)

    def expect_steps(self, planned_steps):
        """Run at most the requested share of a full run, but not fewer than 20 steady steps."""
        if self._max_share is not None:
            least = self._warm_up_steps + _LEAST_STEADY_STEPS
            most = max(least, math.ceil(self._max_share * planned_steps))
            self.max_steps = min(self._last_step, most)

    def expect_epochs(self, epoch_steps, planned_steps):
        """Run past the first epoch, unless that takes over max_steps or half of a full run.

        In the first epoch, caches may be cold. The cost of an epoch's end can only be measured
        after it.
        """
        self.epoch_steps = epoch_steps
        first = epoch_steps + self._boundary_steps
        if first + _LEAST_STEADY_STEPS <= min(self.max_steps, planned_steps / 2):
            self._warm_up_steps = max(self._warm_up_steps, first)

    @property
    def _boundary_steps(self):
        """Number of first steps of an epoch that count as part of the previous epoch's end."""
        return min(_MOST_BOUNDARY_STEPS, self.epoch_steps // 2)

    def steady(self, step_seconds, first=WARM_UP_STEPS):
        """Return the times of the steady steps, excluding the first steps of each later epoch.

        Args:
            step_seconds: The times of all steps so far.
            first: The first step after the warm-up. If 20 steps follow the first epoch, the whole
                epoch counts as warm-up.
        """
        if not self.epoch_steps:
            return step_seconds[first:]
        of_boundary = self._boundary_steps
        if len(step_seconds) >= self.epoch_steps + of_boundary + _LEAST_STEADY_STEPS:
            first = max(first, self.epoch_steps)
        return [
            seconds
            for step, seconds in enumerate(step_seconds[first:], first)
            if step < self.epoch_steps or step % self.epoch_steps >= of_boundary
        ]

    def _epoch_ends(self, step_seconds, planned_steps, first, steady_step_seconds):
        """Return the number of planned and passed epoch ends, and the seconds that each added."""
        of_epoch, of_boundary = self.epoch_steps, self._boundary_steps
        starts = list(range(of_epoch, len(step_seconds) - of_boundary + 1, of_epoch))
        if steady_step_seconds is None:
            starts = []
        # those within the warm-up are better than none
        starts = [start for start in starts if start >= first] or starts
        return {
            "planned": (planned_steps - 1) // of_epoch,
            "made": max(0, len(step_seconds) - 1) // of_epoch,
            "seconds": [
                sum(step_seconds[start : start + of_boundary]) - of_boundary * steady_step_seconds
                for start in starts
            ],
        }

    def ends(self, steps, steady_seconds, agree):
        """Return True if the run ends after this many steps, or has already ended.

        Args:
            steps: Steps run so far.
            steady_seconds: Returns the times of the steady steps, in seconds.
            agree: Returns rank 0's value in every process.
        """
        if self.ended != "complete":
            return True
        if steps >= self.max_steps:
            if steps < self._last_step and agree(len(steady_seconds()) < _LEAST_STEADY_STEPS):
                # a warm-up in seconds outlasts the share: continue until there are steady steps
                self.max_steps = min(self._last_step, math.ceil(steps * _LOOKS_GROW_BY))
                return False
            self.ended = "max_steps"
            return True
        if steps < self._warm_up_steps + self._look_at:
            return False
        self._look_at = math.ceil((steps - self._warm_up_steps) * _LOOKS_GROW_BY)
        if agree(self._knows(steady_seconds())):
            self.ended = "precise"
            return True
        return False

    def _knows(self, seconds):
        """Return True if mean and trend of the step times are within the precision."""
        middle, half = mean_step(seconds)
        if half is None or half > self.precision * middle:
            return False
        return abs(step_trend(seconds)) <= self.precision

    def section(self, step_seconds, planned_steps, first=WARM_UP_STEPS, **parts):
        """Return the `probe` section of metrics.json; `first` is the first step after warm-up."""
        steady_seconds = self.steady(step_seconds, first)
        middle, half = mean_step(steady_seconds)
        if self.epoch_steps:
            ends = self._epoch_ends(step_seconds, planned_steps, first, middle)
            parts = {"epoch_steps": self.epoch_steps, "epochs": ends, **parts}
        return {
            "ended": self.ended,
            "precision": self.precision,
            "max_steps": self.max_steps,
            "planned_steps": planned_steps,
            "step_seconds": middle,
            "step_error_seconds": half,
            "step_trend": step_trend(steady_seconds),
            **parts,
        }


class Amount:
    """Number of steps of a run whose length the sweep sets (training.baseline_seconds).

    `steps` is None until the first steps have shown how many fit into the requested seconds. The
    object is called after every step, but decides only after some steps, which are the same in
    every process.
    """

    def __init__(self, steps=None, seconds=None):
        self.steps, self._seconds = steps, seconds
        self._look_at = _LEAST_PACED_STEPS

    @classmethod
    def from_environment(cls, environment=os.environ):
        """Return the amount that the sweep requests; None if the program decides."""
        steps, seconds = environment.get(RUN_STEPS), environment.get(RUN_SECONDS)
        if not steps and not seconds:
            return None
        return cls(int(steps) if steps else None, float(seconds) if seconds else None)

    def ends(self, steps, step_seconds, agree):
        """Return True if the run ends after this many steps.

        Args:
            steps: Steps run so far.
            step_seconds: Returns the times of all steps, in seconds.
            agree: Returns rank 0's value in every process.
        """
        if self.steps is None and steps >= self._look_at:
            self._look_at = math.ceil(steps * _PACE_LOOKS_GROW_BY)
            self.steps = int(agree(self._paced(step_seconds()))) or None
        return self.steps is not None and steps >= self.steps

    def _paced(self, seconds):
        """Return the number of steps that fit into the requested seconds; 0 if not yet known.

        The first step is counted separately because it includes one-time work.
        """
        first, others = seconds[0], seconds[1:]
        if sum(others) < _LEAST_PACED_SHARE * self._seconds:
            return 0
        return max(len(seconds), 1 + round((self._seconds - first) / mean(others)))


class Clock:
    """The clock of one training run; use the instance `clock` below."""

    def __init__(self):
        self._folder = None
        self._reset()

    def __call__(self, output_folder=None, steps=None, epoch_steps=None):
        """Reset the clock and return it, for use in a `with` statement.

        Args:
            output_folder: Folder for metrics.json. Default: SM_OUTPUT_DATA_DIR, which SageMaker
                always sets, or the working directory.
            steps: Steps of a full run; required to take part in a probe.
            epoch_steps: Steps of an epoch, so that a probe includes the end of one.
        """
        self._folder = output_folder
        self._reset()
        self._planned_steps = steps
        self._probe = Probe.from_environment() if steps else None
        if self._probe is not None:
            self._probe.expect_steps(steps)
            if epoch_steps:
                self._probe.expect_epochs(epoch_steps, steps)
        self._amount = Amount.from_environment()
        return self

    def __enter__(self):
        self._look()
        _synchronize()
        self._start_unix_seconds, self._started = time.time(), time.perf_counter()
        self._last_step = self._started
        return self

    def __exit__(self, kind, error, traceback):
        self._look()
        if kind is None:
            _synchronize()
            self._finish(time.perf_counter() - self._started)

    def step(self, samples=None):
        """Record an optimizer step on `samples` samples of this process (None: not counted).

        Returns True, in every process, once a probe is precise enough or all the steps that the
        sweep requests have been run. The program then leaves its loop.
        """
        now = time.perf_counter()
        self._step_seconds.append(now - self._last_step)
        self._last_step = now
        if samples is None:
            self._is_counted = False
        else:
            self._samples += int(samples)
        if self._group is None:
            self._look()
        made = len(self._step_seconds)
        if self._amount is not None:
            return self._amount.ends(made, lambda: self._step_seconds, self._agree)
        if self._probe is None or made >= self._planned_steps:
            return False
        return self._probe.ends(made, lambda: self._probe.steady(self._step_seconds), self._agree)

    def _agree(self, answer):
        """Return rank 0's value.

        Return False if it can't be sent to the others, so that all processes end at max_steps.
        """
        if self._group is None:
            return answer if self._alone() == 1 else False
        answer = _broadcast(answer) if self._group[0] > 1 else answer
        self._last_step = time.perf_counter()
        return answer

    def metric(self, name, value, goal=None):
        """Set the final validation metric; the last call counts.

        Args:
            name: Name of the metric.
            value: Its value at the end of the training.
            goal: "maximize", "minimize", or None if unknown.

        Raises:
            ValueError: The goal is not one of these.
        """
        if goal not in ("maximize", "minimize", None):
            raise ValueError(f"goal: got {goal!r}; allowed: 'maximize', 'minimize' or None")
        self._metric = {"name": str(name), "value": float(value), "goal": goal}

    def _reset(self):
        self._start_unix_seconds = self._started = self._last_step = 0.0
        self._step_seconds, self._samples, self._is_counted = [], 0, True
        self._metric = self._group = self._planned_steps = self._probe = self._amount = None

    def _look(self):
        """Look up the process group, which the program may destroy before the clock stops."""
        self._group = _group() or self._group

    def _finish(self, seconds):
        world_size, rank = self._group or (self._alone(), _rank_by_launcher())
        metrics = self._metrics(seconds, world_size)
        said = {
            "rank": rank,
            "world_size": world_size,
            "train_seconds": seconds,
            "steps": metrics["steps"],
        }
        said["steady_step_seconds"] = metrics["steady"]["step_seconds"]
        said["final_metric"] = self._metric["value"] if self._metric else None
        print(
            " ".join(
                f"{name}={_spell(value)};" for name, value in said.items() if value is not None
            ),
            flush=True,
        )
        if rank == 0:
            _write(self._folder or os.environ.get("SM_OUTPUT_DATA_DIR") or ".", metrics)
        atexit.unregister(let_gloo_finish)
        atexit.register(let_gloo_finish)

    def _alone(self):
        """Return 1 if this process trained alone; None if unknown."""
        asked = (
            os.environ.get("WORLD_SIZE")
            or os.environ.get("OMPI_COMM_WORLD_SIZE")
            or str(len(_hosts()))
        )
        if asked == "1":
            return 1
        looked_while_training = bool(self._step_seconds) and "torch" in sys.modules
        return (
            1
            if looked_while_training and not any(name in sys.modules for name in _GROUP_LIBRARIES)
            else None
        )

    def _metrics(self, seconds, world_size):
        steady = self._step_seconds[WARM_UP_STEPS:]
        is_short = len(steady) < ENOUGH_STEPS and sum(steady) < ENOUGH_SECONDS
        processed = (
            self._samples * world_size
            if world_size and self._is_counted and self._samples
            else None
        )
        metrics = {
            "schema_version": SCHEMA_VERSION,
            "train_seconds": seconds,
            "world": {"world_size": world_size, **_processes_per_node(world_size)},
            "run_start_unix_seconds": self._start_unix_seconds,
            "run_stop_unix_seconds": self._start_unix_seconds + seconds,
            "steps": len(self._step_seconds) or None,
            "steady": {
                "step_seconds": median(steady) if steady else None,
                "steps": len(steady),
                "seconds": sum(steady),
                "first_step": min(WARM_UP_STEPS, len(self._step_seconds)),
                "short_window": is_short,
            },
            "samples": {"processed": processed},
            "final_metric": self._metric,
        }
        if self._probe is not None:
            metrics["probe"] = self._probe.section(self._step_seconds, self._planned_steps)
        return metrics


clock = Clock()


def let_gloo_finish(at_most_seconds=30.0):
    """Wait until no Gloo thread is busy; call it before the process exits.

    A Gloo thread releases a collective's tensors shortly after the program has the result. If
    Python exits before that, PyTorch aborts the process ("terminate called without an active
    exception", github.com/pytorch/pytorch/issues/190489), and a job whose work is done fails.
    """
    ends_at, quiet_looks = time.monotonic() + at_most_seconds, 0
    while quiet_looks < 2 and time.monotonic() < ends_at:
        states = list(_gloo_threads())
        if not states:
            return
        time.sleep(0.01)
        quiet_looks = 0 if "R" in states else quiet_looks + 1


def _gloo_threads():
    """Yield each Gloo thread's state as reported by Linux: R if running or runnable."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/stat", encoding="utf-8") as stream:
                name, rest = stream.read().split("(", 1)[1].rsplit(") ", 1)
        except OSError:
            continue  # the thread has ended
        if name == "pt_gloo_runloop":
            yield rest[0]


def _group():
    """Return (world size, rank) of the active process group, or None.

    torch.distributed comes first, then Horovod, then MPI.
    """
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return torch.get_world_size(), torch.get_rank()
    horovod = sys.modules.get("horovod.torch") or sys.modules.get("horovod.tensorflow")
    if horovod is not None and horovod.is_initialized():
        return horovod.size(), horovod.rank()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return mpi.COMM_WORLD.Get_size(), mpi.COMM_WORLD.Get_rank()
    return None


def _broadcast(value):
    """Return rank 0's value on every rank, using the library whose group is active."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        answer = [value]
        torch.broadcast_object_list(answer, src=0)
        return answer[0]
    horovod = sys.modules.get("horovod.torch") or sys.modules.get("horovod.tensorflow")
    if horovod is not None and horovod.is_initialized():
        return horovod.broadcast_object(value, root_rank=0)
    return sys.modules["mpi4py.MPI"].COMM_WORLD.bcast(value, root=0)


def _rank_by_launcher():
    """Return the launcher's rank or, without one, the node's index among the sorted hosts."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    hosts, own = sorted(_hosts()), os.environ.get("SM_CURRENT_HOST")
    return hosts.index(own) if own in hosts else 0


def _processes_per_node(world_size):
    """Return the launcher's processes per node as an entry of `world`; {} if unknown.

    torchrun starts GROUP_WORLD_SIZE groups. Ray Train has only the number of this node, which may
    differ from others' unless it is all of them.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    groups = os.environ.get("GROUP_WORLD_SIZE", "1")
    if not (local.isdecimal() and groups.isdecimal() and int(local)):
        return {}
    is_same = int(local) * int(groups) == world_size
    return {"processes_per_node": int(local)} if is_same else {}


def _hosts():
    try:
        return list(json.loads(os.environ.get("SM_HOSTS", "")))
    except ValueError:
        return ["localhost"]


def _synchronize():
    """Wait for the GPU's asynchronous work, so that the next timestamp includes it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _spell(value):
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _write(folder, metrics, name="metrics.json"):
    """Write the file atomically, so that no reader of the folder sees a partial file."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path + ".tmp", "w", encoding="utf-8") as stream:
        json.dump(metrics, stream, allow_nan=False)
    os.replace(path + ".tmp", path)
