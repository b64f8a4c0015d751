import torch

from tilesmith import Case, Cost, Spec, Work


def reference(x):
    return x.t().contiguous()


def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.rows, case.cols, dtype=dtype, device=device)}


def cost(case, dtype):
    return Cost(Work(2 * case.rows * case.cols * dtype.itemsize, 0))


SPEC = Spec(
    name="transpose",
    op=reference,
    reference=reference,
    make_inputs=make_inputs,
    cost=cost,
    dtypes=(torch.float32, torch.float16),
    cases=[Case("odd", rows=7, cols=33), Case("even", rows=6, cols=128)],
    differentiable=False,
)
