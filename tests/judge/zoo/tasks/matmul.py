import torch

from tilesmith import Case, Cost, Spec, Work


def reference(a, b):
    return a @ b


def make_inputs(case, dtype, device):
    return {
        "a": torch.randn(case.m, case.k, dtype=dtype, device=device),
        "b": torch.randn(case.k, case.n, dtype=dtype, device=device),
    }


def cost(case, dtype):
    moved = case.m * case.k + case.k * case.n + case.m * case.n
    return Cost(Work(moved * dtype.itemsize, 2 * case.m * case.k * case.n))


SPEC = Spec(
    name="matmul",
    op=reference,
    reference=reference,
    make_inputs=make_inputs,
    cost=cost,
    dtypes=(torch.float32, torch.float16),
    cases=[Case("odd", m=33, n=19, k=65), Case("even", m=32, n=64, k=32)],
    differentiable=False,
)
