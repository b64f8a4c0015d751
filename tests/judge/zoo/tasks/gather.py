import torch

from tilesmith import Case, Cost, Spec, Work


def reference(table, index):
    return table[index]


def make_inputs(case, dtype, device):
    return {
        "table": torch.randn(case.rows, case.cols, dtype=dtype, device=device),
        "index": torch.randint(case.rows, (case.picks,), device=device),
    }


def cost(case, dtype):
    return Cost(Work(2 * case.picks * case.cols * dtype.itemsize + 8 * case.picks, 0))


SPEC = Spec(
    name="gather",
    op=reference,
    reference=reference,
    make_inputs=make_inputs,
    cost=cost,
    dtypes=(torch.float32,),
    cases=[Case("odd", rows=11, cols=17, picks=5), Case("even", rows=32, cols=64, picks=16)],
    differentiable=False,
)
