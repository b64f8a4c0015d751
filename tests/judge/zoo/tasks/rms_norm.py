import torch

from tilesmith import Case, Cost, Spec, Work


def reference(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def make_inputs(case, dtype, device):
    return {
        "x": torch.randn(case.rows, case.cols, dtype=dtype, device=device),
        "weight": torch.randn(case.cols, dtype=dtype, device=device),
    }


def cost(case, dtype):
    n = case.rows * case.cols
    return Cost(Work(2 * n * dtype.itemsize, 4 * n), Work(3 * n * dtype.itemsize, 8 * n))


SPEC = Spec(
    name="rms_norm",
    op=reference,
    reference=reference,
    make_inputs=make_inputs,
    cost=cost,
    dtypes=(torch.float32,),
    cases=[Case("odd", rows=7, cols=33), Case("even", rows=6, cols=128)],
    roundings=4,
)
