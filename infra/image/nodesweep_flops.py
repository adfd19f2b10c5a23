"""Count the floating-point operations of the shipped program's training steps.

The two steps after the first one are counted with the formulas of torch.utils.flop_counter: matrix
multiplications, convolutions and attention, in forward passes of modules that record gradients and
in backward passes. The smaller number is used, since a step that a gradient scaler skips adds its
operations to the next one. Operations that a backward pass repeats to save memory are not counted,
as in the definition of model FLOPs utilization (PaLM, Chowdhery et al. 2022, appendix B).

A counted step takes about 20 microseconds more per operator; its results are the same. Nothing is
counted, and `missing` is the reason, if operators do not pass through Python in this thread
(torch.compile, DataParallel) or the program has a TorchDispatchMode of its own.

Scripts that nodesweep_measure observes are not counted: a script that compiles its first function
after its first step, or calls a higher-order operator, was ended by the dispatch mode, and LSTMs,
torch.autograd.grad and checkpointed autograd functions were counted wrongly.
"""

import sys
import threading
from collections import defaultdict

FIRST_RELEASE = (2, 4)
COUNTED_STEPS = 2
MAIN_SHARE = 0.9  # of the operations, for their data type to be the step's


class Flops:
    """The operations of this process's steps."""

    def __init__(self):
        self._torch = self._mode = None
        self._no_mode = "only the shipped program is counted"
        self.reset()

    def install(self, torch):
        """Load the formulas before the training, which is not to wait for them."""
        self._torch = torch
        try:
            self._mode = _make_mode(torch, self)
        except Exception:  # versions before 2.4 lack a part, and others may come to lack one
            self._no_mode = f"operators are counted from PyTorch 2.4 on, not in {torch.__version__}"

    def reset(self):
        """Discard all counts, before a training and in a forked process."""
        for handle in getattr(self, "_handles", ()):
            handle.remove()
        self.missing = "it made too few optimizer steps"  # None: counted
        self._optimizer = self._thread = None
        self._handles, self._is_over = [], False
        self._depth, self._is_backward, self._is_entered = 0, False, False
        self._complete, self._counts, self._passes = [], defaultdict(int), set()

    def facts(self):
        """Return `flops` of metrics.json: operations per step and their data type, or a reason."""
        if self.missing is None and _compiled_frames():
            self.missing = "torch.compile was used"
        if self.missing is not None:
            return {"not_counted": self.missing}
        counts = min(self._complete, key=lambda each: sum(each.values()))
        total = sum(counts.values())
        dtype, most = max(counts.items(), key=lambda each: each[1])
        return {"per_step": total, "dtype": dtype if most >= MAIN_SHARE * total else None}

    # Steps: the optimizer of the first one delimits them

    def after_step(self, optimizer):
        """Record the end of an optimizer step."""
        try:
            if self._optimizer is None:
                self._optimizer = id(optimizer)
                self._begin()
            elif self._handles and id(optimizer) == self._optimizer:
                self._end_step()
        except Exception as error:
            self._fail(error)

    def _begin(self):
        if self._mode is None or _compiled_frames():
            self.missing = self._no_mode if self._mode is None else "torch.compile was used"
            return
        self._thread = threading.get_ident()
        modules = self._torch.nn.modules.module
        self._handles = [
            modules.register_module_forward_pre_hook(self._before_forward),
            modules.register_module_forward_hook(self._after_forward, always_call=True),
        ]

    def _end_step(self):
        if not self._is_over and self._passes >= {"unrecorded", "repeated"}:
            self._stop("a checkpoint repeats a forward pass that recorded no gradients")
        if not self._is_over and not self._passes >= {"forward", "backward"}:
            self._stop("a step had no forward and backward pass of modules")
        if not self._is_over:
            self._complete.append(self._counts)
            self.missing = None
            self._is_over = len(self._complete) == COUNTED_STEPS
        if self._is_over:
            for handle in self._handles:
                handle.remove()
            self._handles = []
        else:
            self._counts, self._passes = defaultdict(int), set()

    def _stop(self, reason):
        """Give up; the hooks stay until the next step's end, since torch may be iterating."""
        self.missing, self._is_over = reason, True

    def _fail(self, error):
        self._stop(f"nodesweep_flops.py failed with {type(error).__name__}")

    # Passes: the mode is entered and exited within one call of the program

    def _before_forward(self, module, args):
        if self._thread is None or self._is_backward:
            return
        try:
            if threading.get_ident() != self._thread:
                self._stop("its modules run in several threads")
                return
            self._depth += 1
            if self._depth == 1:
                if self._torch.is_grad_enabled():
                    self._enter()
                else:  # an evaluation, or a checkpoint that a backward pass is to repeat
                    self._passes.add("unrecorded")
        except Exception as error:
            self._fail(error)

    def _after_forward(self, module, args, output):
        if self._is_backward or threading.get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if self._depth == 0:
            self._exit()

    def begin_backward(self, creates_graph):
        """Begin to count a backward pass; return True if end_backward() must end it."""
        try:
            is_counted = self._handles and not self._is_over and not self._is_backward
            if not is_counted or self._depth or threading.get_ident() != self._thread:
                return False
            if creates_graph:
                self._stop("it differentiates its gradients")
                return False
            self._enter()
            self._is_backward = True
            return True
        except Exception as error:
            self._fail(error)
            return False

    def end_backward(self):
        """End the counting of a backward pass."""
        self._is_backward = False
        self._exit()

    def _enter(self):
        if self._is_over:
            return
        if self._mode.has_others():
            self._stop("the program has a TorchDispatchMode of its own")
            return
        self._mode.__enter__()
        self._is_entered = True

    def _exit(self):
        if self._is_entered:
            self._is_entered = False
            self._mode.__exit__(None, None, None)

    def add(self, count, dtype):
        """Add an operator's count, unless a backward pass repeats it."""
        if self._is_over:
            return
        if self._is_backward and self._torch.is_grad_enabled():
            self._passes.add("repeated")
            return
        self._counts[dtype] += count
        self._passes.add("backward" if self._is_backward else "forward")

    def fail_formula(self, error):
        """Give up because a formula raised an error."""
        self._stop(f"a formula failed with {type(error).__name__}")


def _compiled_frames():
    """Return how many frames torch.compile has compiled; 0 if unknown."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    try:
        return dynamo.counters["frames"]["total"] if dynamo is not None else 0
    except Exception:
        return 0


def _make_mode(torch, flops):
    """Return a dispatch mode that reports to `flops`; raise an error if this torch is too old."""
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
    from torch.utils.flop_counter import FlopCounterMode

    if tuple(map(int, torch.__version__.split(".")[:2])) < FIRST_RELEASE:
        raise ImportError("an operator's result is passed to its formula under another name")
    formulas = FlopCounterMode(display=False).flop_registry

    class Counting(TorchDispatchMode):
        @staticmethod
        def has_others():
            return bool(_get_current_dispatch_mode_stack())

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            formula = formulas.get(func._overloadpacket)
            if formula is not None:
                try:
                    count = formula(*args, **(kwargs or {}), out_val=result)
                    flops.add(count, _dtype(torch, func, args))
                except Exception as error:
                    flops.fail_formula(error)
            return result

    return Counting()


def _dtype(torch, func, args):
    """Return an operator's data type; "tf32" if a GPU may use it for float32."""
    tensor = [each for each in args if isinstance(each, torch.Tensor)][-1]
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "float32" and tensor.is_cuda:
        backends = torch.backends
        of = backends.cudnn if "convolution" in str(func) else backends.cuda.matmul
        name = "tf32" if of.allow_tf32 else name
    return name


flops = Flops()
