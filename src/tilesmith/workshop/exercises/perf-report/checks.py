"""The learner's benchmark runs with times that the check chooses in place of `do_bench`'s."""

import random
from unittest import mock

import torch
import triton
from torch.overrides import TorchFunctionMode

from tilesmith.workshop.checking.program_check import Wrong

PROVIDERS = {"torch", "by hand"}
chance = random.Random()


def drawn(median):
    """Return a median, a fast and a slow time that no program can know."""
    return median * chance.uniform(0.9, 1.1), median * chance.uniform(0.6, 0.8), median * chance.uniform(1.3, 1.6)


MILLISECONDS = {"torch": drawn(0.5), "by hand": drawn(2.0)}
FACTORIES = {
    "randn",
    "rand",
    "empty",
    "zeros",
    "ones",
    "empty_like",
    "randn_like",
    "rand_like",
    "zeros_like",
    "to",
    "cuda",
}


class Watch(TorchFunctionMode):
    """Notes the functions that make tensors, those that compute the norm, and the tensors that they begin with."""

    def __init__(self):
        super().__init__()
        self.made, self.names, self.inputs, self._computed = [], set(), [], []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        self.names.add(name)
        if name in FACTORIES:
            self.made.append(name)
        for one in [*args, *(kwargs or {}).values()]:
            if isinstance(one, torch.Tensor) and not any(one is known for known in self.inputs + self._computed):
                self.inputs.append(one)
        result = function(*args, **(kwargs or {}))
        self._computed.append(result)
        return result


class Timer:
    """Stands in for do_bench: calls the work once, watched, and returns the times of a provider."""

    def __init__(self, provider):
        self.provider, self.calls, self.made, self.names, self.result = provider, 0, [], set(), None
        self.inputs = []

    def __call__(self, work, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean"):
        self.calls += 1
        with Watch() as watch:
            self.result = work()
        self.made, self.names, self.inputs = watch.made, watch.names, watch.inputs
        known = dict(zip((0.5, 0.2, 0.8), MILLISECONDS[self.provider], strict=True))
        if quantiles is None:
            return sum(known.values()) / 3
        try:
            found = [known[one] for one in quantiles]
        except KeyError as error:
            raise Wrong(f"quantiles={list(quantiles)}: this exercise uses 0.5, 0.2 and 0.8, not {error}.") from None
        return found[0] if len(found) == 1 else found


def the_benchmark(program):
    mark = program.benchmark
    if not hasattr(mark, "benchmarks"):
        raise Wrong("benchmark is a plain function: write @triton.testing.perf_report(…) above it.")
    benchmarks = mark.benchmarks if isinstance(mark.benchmarks, list | tuple) else [mark.benchmarks]
    return mark, benchmarks[0]


def check_declaration(program):
    _, found = the_benchmark(program)
    if list(found.x_names) != ["columns"]:
        raise Wrong(f"x_names is {list(found.x_names)}, but the number of columns varies: ['columns'].")
    if not hasattr(found.x_vals, "__iter__"):
        raise Wrong(f"x_vals is {found.x_vals}: a list of at least five widths is wanted.")
    values = list(found.x_vals)
    if len(set(values)) < 5 or values != sorted(values):
        raise Wrong(f"x_vals is {values}: at least five different widths, from small to large, are wanted.")
    if max(values) < 16 * min(values):
        raise Wrong(
            f"x_vals goes from {min(values)} to {max(values)}: let the largest be at least 16 times the smallest."
        )
    if found.line_arg != "provider" or set(found.line_vals) != PROVIDERS:
        raise Wrong(
            f"line_arg is {found.line_arg!r} with the values {list(found.line_vals)}: wanted are "
            f"'provider' and {sorted(PROVIDERS)}."
        )
    if len(found.line_names) != len(found.line_vals):
        raise Wrong(f"line_names has {len(found.line_names)} names for {len(found.line_vals)} lines.")
    if "GB/s" not in found.ylabel:
        raise Wrong(f"ylabel is {found.ylabel!r}: say what the axis shows, in GB/s.")
    if not found.x_log:
        raise Wrong("x_log is not set: widths that double belong on a logarithmic axis (x_log=True).")


def one_call(program, columns, provider):
    mark, found = the_benchmark(program)
    timer = Timer(provider)
    with mock.patch.object(triton.testing, "do_bench", timer):
        return mark.fn(**{"columns": columns, found.line_arg: provider}, **found.args), timer


def check_calls(program):
    for columns in (64, 256):
        x = None
        for provider in sorted(PROVIDERS):
            returned, timer = one_call(program, columns, provider)
            where = f"benchmark(columns={columns}, provider={provider!r})"
            if timer.calls != 1:
                raise Wrong(f"{where} calls triton.testing.do_bench {timer.calls} times, but once is wanted.")
            if timer.made:
                raise Wrong(
                    f"{where}: the function that do_bench times makes tensors ({timer.made[0]}). "
                    "Then this time is part of the result. Make the inputs before."
                )
            if not isinstance(timer.result, torch.Tensor) or timer.result.shape[-1] != columns:
                raise Wrong(f"{where}: the timed function does not return the normalised rows of {columns} columns.")
            if ("rms_norm" in timer.names) != (provider == "torch"):
                raise Wrong(f"{where} times the other implementation: look at the branch on provider.")
            if not is_norm(timer.result, timer.inputs):
                raise Wrong(f"{where}: the timed function does not return x / sqrt(mean(x²) + 1e-6) * weight.")
            rows = timer.result.numel() // columns
            require_rates(where, returned, 2 * rows * columns * timer.result.element_size(), provider)
            x = x or rows


def is_norm(result, inputs):
    """Return whether a result is the norm of one of the inputs, scaled by another one."""
    within = 1e-4 if result.dtype == torch.float32 else 2e-2
    rows = [one.double() for one in inputs if one.shape == result.shape]
    weights = [one.double().flatten() for one in inputs if one.numel() == result.shape[-1]]
    return any(
        torch.allclose(
            result.double(), torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * x * weight, within, within
        )
        for x in rows
        for weight in weights
    )


def require_rates(where, returned, moved, provider):
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        raise Wrong(
            f"{where} returns {returned!r}, but three rates are wanted: of the median, the slow and the fast time."
        )
    median, fast, slow = (moved / (one / 1e3) / 1e9 for one in MILLISECONDS[provider])
    found, low, high = (float(one) for one in returned)
    if abs(found / median - 0.5) < 1e-6:
        raise Wrong(f"{where} returns {found:.4g} GB/s, half of {median:.4g}. x is read and y is written: both count.")
    if abs(found / median - 1) > 1e-6:
        raise Wrong(
            f"{where} returns {found:.4g} GB/s, but {moved} bytes in {MILLISECONDS[provider][0]:.4g} ms, the median, "
            f"are {median:.4g} GB/s. Which bytes, which unit, which of the three times?"
        )
    if low > high:
        raise Wrong(
            f"{where} returns the lower bound {low:.4g} above the upper bound {high:.4g}: a short time is a high rate."
        )
    if abs(low / slow - 1) > 1e-6 or abs(high / fast - 1) > 1e-6:
        raise Wrong(
            f"{where} returns the bounds {low:.4g} and {high:.4g} GB/s, but {slow:.4g} and {fast:.4g} are wanted."
        )
