"""Count the floating-point operations of a program's training steps.

Before each backward pass of the second and third step, the graph that autograd recorded is read:
nothing is called, wrapped or kept. Matrix multiplications, convolutions and attention are counted,
as in torch.utils.flop_counter; each product's backward pass takes as many operations per gradient
as its forward pass. Operations that a backward pass repeats to save memory are not counted, as in
the definition of model FLOPs utilization (PaLM, Chowdhery et al. 2022, appendix B). Operations
without gradients are not counted either, such as those of frozen layers in front of trained ones. A
sparse matrix counts as a dense one, since the graph does not show its layout.

The smaller number of the two steps is used, since a step that a gradient scaler skips adds its
operations to the next one. Nothing is counted, and `missing` is the reason, if a part of the graph
does not show its operations (torch.compile, custom autograd functions, cuDNN's RNNs).
"""

import re
import threading
from collections import defaultdict
from functools import lru_cache
from math import prod

COUNTED_STEPS = 2
MOST_NODES = 100_000  # to read: about 0.3 s
MAIN_SHARE = 0.9  # share of the operations that must have the data type reported for a step

# By node name: the position of each factor, and the dimension of it that is summed over
_PRODUCTS = {
    "Mm": ((0, -1), (1, -2)),
    "Bmm": ((0, -1), (1, -2)),
    "Addmm": ((1, -1), (2, -2)),
    "Baddbmm": ((1, -1), (2, -2)),
    "Linear": ((0, -1), (1, -1)),
}
# Other nodes that multiply matrices, or stand for more than one operation
_WITHOUT_FORMULA = re.compile(
    r"Conv(?!ert)|[Mm]m|[Mm]atmul|Linear(?!1[Dd])|Rnn|Lstm(?!Cell)|Attention|^Trilinear|CppNode"
    r"|DifferentiableGraph|Rpc"
)
# Modules whose custom autograd functions multiply no matrices
_HARMLESS = (
    "torch.nn.parallel.",
    "torch.nn.modules.",
    "torch.distributed.fsdp.",
    "torch.distributed.nn.",
    "torch.distributed._functional_collectives",
    "deepspeed.runtime.zero.parameter_offload",
)


class NotCounted(Exception):
    """A step's operations are unknown; the message is the reason."""


class Flops:
    """Counts the operations of this process's steps."""

    def __init__(self):
        self._torch, self._unable = None, "nothing counts them"
        self.reset()

    def install(self, torch):
        """Start counting after the first optimizer step."""
        self._torch, self._unable = torch, None
        node = getattr(torch.autograd.graph, "Node", None)  # missing before 2.1
        if not hasattr(node, "_input_metadata"):
            self._unable = f"operators are counted from PyTorch 2.5 on, not in {torch.__version__}"

    def reset(self):
        """Discard all counts; called before a training run and in a forked process."""
        self.missing = "it made too few optimizer steps"  # None: counted
        self._optimizer = self._thread = None
        self._is_over, self._nodes = False, 0
        self._complete, self._counts, self._passes = [], defaultdict(int), 0

    def facts(self):
        """Return `flops` of metrics.json: operations per step, or why they were not counted."""
        if self.missing is not None:
            return {"not_counted": self.missing}
        counts = min(self._complete, key=lambda each: sum(each.values()))
        total = sum(counts.values())
        dtype, most = max(counts.items(), key=lambda each: each[1])
        return {"per_step": total, "dtype": dtype if most >= MAIN_SHARE * total else None}

    def after_step(self, optimizer):
        """Record the end of an optimizer step; only those of the first optimizer end a step."""
        if self._is_over:
            return
        if self._optimizer is None:
            self._optimizer, self._thread = id(optimizer), threading.get_ident()
            if self._unable is not None:
                self._stop(self._unable)
        elif id(optimizer) == self._optimizer:
            self._end_step()

    def _end_step(self):
        if not self._passes:
            self._stop("a step had no call of torch.autograd.backward")
        elif not self._counts:
            self._stop("it multiplies no matrices")
        else:
            self._complete.append(self._counts)
            self.missing = None
            self._is_over = len(self._complete) == COUNTED_STEPS
            self._counts, self._passes = defaultdict(int), 0

    def _stop(self, reason):
        self.missing, self._is_over = reason, True

    def before_backward(self, args, kwargs):
        """Count the operations of a pass from the arguments of torch.autograd.backward."""
        if self._optimizer is None or self._is_over:
            return
        try:
            self._read(*args, **kwargs)
        except NotCounted as reason:
            self._stop(str(reason))
        except Exception as error:  # e.g. the graph of a future PyTorch
            self._stop(f"nodesweep_flops.py failed with {type(error).__name__}")

    def before_gradients(self):
        """Stop counting, because torch.autograd.grad computes gradients outside backward()."""
        if self._optimizer is not None and not self._is_over:
            self._stop("it calls torch.autograd.grad")

    def _read(
        self, tensors, grad_tensors=None, retain_graph=None, create_graph=False,
        grad_variables=None, inputs=None,
    ):  # fmt: skip
        if threading.get_ident() != self._thread:
            raise NotCounted("its backward passes and steps are in several threads")
        if retain_graph or create_graph or inputs is not None:
            raise NotCounted("a backward pass keeps its graph, or ends before the parameters")
        if isinstance(tensors, self._torch.Tensor):
            tensors = (tensors,)
        # an iterator is left alone, because only the pass may consume it
        if not isinstance(tensors, (list, tuple)) or not all(
            isinstance(each, self._torch.Tensor) for each in tensors
        ):
            raise NotCounted("a backward pass does not start from a list of tensors")
        if any(hasattr(each, "full_tensor") for each in tensors):
            raise NotCounted("its loss is a DTensor, whose shape covers all processes")
        self._passes += 1
        seen, waiting = set(), [each.grad_fn for each in tensors]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            self._nodes += 1
            if self._nodes > MOST_NODES:
                raise NotCounted(f"its steps have more than {MOST_NODES:,} operators")
            edges = node.next_functions
            waiting += [following for following, _ in edges]
            count = _operations(self._torch, node, edges)
            if count:
                self._counts[_dtype(self._torch, node)] += count


def _operations(torch, node, edges):
    """Return the operations of a node's forward and backward pass; 0 if it multiplies no matrices.

    Raises:
        NotCounted: The operations are unknown.
    """
    name = node.name()
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        function = type(node)._forward_cls
        if not function.__module__.startswith(_HARMLESS):
            raise NotCounted(f"the operations of {_hidden(function.__name__)} are not known")
        return 0
    operator = _operator(name)
    if operator in _PRODUCTS:
        factors = _PRODUCTS[operator]
        if not _needed(edges, *(place for place, _ in factors)):
            raise NotCounted("the shapes of a product of frozen factors are not known")
        index, dimension = next(each for each in factors if edges[each[0]][0] is not None)
        multiplied = prod(_result(node)) * _shape(torch, edges[index])[dimension]
        return 2 * multiplied * (1 + _needed(edges, *(place for place, _ in factors)))
    if operator == "Convolution":
        if edges[1][0] is None:
            raise NotCounted("the shape of a frozen convolution's weight is not known")
        weight, result = _shape(torch, edges[1]), _result(node)
        if node._saved_transposed:
            result = (result[0], weight[0], *_transposed_input(node, result[2:], weight[2:]))
        multiplied = prod(result) * prod(weight) // weight[0]
        return 2 * multiplied * (1 + _needed(edges, 0, 1))
    if operator == "Attention":
        if _needed(edges, 0, 1, 2) < 3:
            raise NotCounted("attention's shapes are known only if all inputs need gradients")
        query, key, value = (_shape(torch, edge) for edge in edges[:3])
        # scores and weighted sum, and two gradients of each
        return 3 * 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    # an in-place operation on a view does not show which operation it is; a copy has two inputs
    if operator is not None or (name.endswith("CopySlices") and len(edges) > 2):
        raise NotCounted(f"the operations of {name} are not known")
    return 0


@lru_cache
def _operator(name):
    """Return the key of the formula, the name if there is none, or None if none is needed."""
    found = re.match(r"(Mm|Bmm|Addmm|Baddbmm|Linear|Convolution)Backward\d+$", name)
    if found:
        return found.group(1)
    if re.match(r"ScaledDotProduct\w*Backward\d+$", name):
        return "Attention"
    return name if _WITHOUT_FORMULA.search(name) else None


def _needed(edges, *places):
    return sum(edges[place][0] is not None for place in places)


def _result(node, index=0):
    """Return the shape of one of an operator's results."""
    result = node._input_metadata[index]
    if getattr(result, "is_nested_tensor", False):
        raise NotCounted("nested tensors have no single shape")
    return tuple(map(int, result.shape))


def _shape(torch, edge):
    """Return the shape of an operator's input that needs a gradient."""
    node, index = edge
    variable = getattr(node, "variable", None)  # of a parameter
    if variable is None:
        return _result(node, index)
    if not variable.numel() or hasattr(variable, "full_tensor"):  # ZeRO stage 3, or a DTensor
        raise NotCounted("a parameter is divided among processes")
    return tuple(variable.shape)


def _transposed_input(node, result, kernel):
    """Return a transposed convolution's input size from its output size, by ConvTranspose2d's
    formula.
    """
    strides, paddings = node._saved_stride, node._saved_padding
    dilations, extra = node._saved_dilation, node._saved_output_padding
    return [
        (size - 1 - extra[i] - dilations[i] * (kernel[i] - 1) + 2 * paddings[i]) // strides[i] + 1
        for i, size in enumerate(result)
    ]


def _hidden(name):
    return f"{name} (torch.compile)" if name == "CompiledFunction" else name


def _dtype(torch, node):
    """Return the data type of an operator's result; "tf32" if a GPU can use it for float32."""
    result = node._input_metadata[0]
    name = str(result.dtype).removeprefix("torch.")
    if name == "float32" and result.device.type == "cuda":
        backends = torch.backends
        used = backends.cudnn if "Convolution" in node.name() else backends.cuda.matmul
        try:
            name = "tf32" if used.allow_tf32 else name
        except RuntimeError:  # set by fp32_precision
            return None
    return name


flops = Flops()
