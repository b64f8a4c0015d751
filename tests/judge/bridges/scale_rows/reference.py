import torch
from task import input_t, output_t
from utils import make_match_reference


def generate_input(rows: int, cols: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(rows, cols, device="cuda", dtype=torch.float32, generator=gen)
    factor = torch.rand(rows, device="cuda", dtype=torch.float32, generator=gen)
    return x, factor


def ref_kernel(data: input_t) -> output_t:
    x, factor = data
    return x * factor[:, None]


check_implementation = make_match_reference(ref_kernel)
