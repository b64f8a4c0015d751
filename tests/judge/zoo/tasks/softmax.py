import torch

from tilesmith import Case, Cost, Spec, Work


def reference(x):
    return torch.softmax(x, -1)


def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.rows, case.cols, dtype=dtype, device=device)}


def cost(case, dtype):
    n = case.rows * case.cols
    return Cost(Work(2 * n * dtype.itemsize, 5 * n))


SPEC = Spec(
    name="softmax",
    op=reference,
    reference=reference,
    make_inputs=make_inputs,
    cost=cost,
    dtypes=(torch.float32, torch.float16),
    cases=[Case("odd", rows=7, cols=33), Case("even", rows=6, cols=128)],
    differentiable=False,
)
