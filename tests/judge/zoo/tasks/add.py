import torch

from tilesmith import Case, Cost, Spec, Work


def reference(x, y):
    return x + y


def make_inputs(case, dtype, device):
    return {name: torch.randn(case.n, dtype=dtype, device=device) for name in ("x", "y")}


def cost(case, dtype):
    return Cost(Work(3 * case.n * dtype.itemsize, case.n))


SPEC = Spec(
    name="add",
    op=reference,
    reference=reference,
    make_inputs=make_inputs,
    cost=cost,
    dtypes=(torch.float32, torch.float16),
    cases=[Case("odd", n=301), Case("even", n=1024)],
    differentiable=False,
)
