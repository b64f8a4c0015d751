"""The learner's operator and block: eager, under PyTorch's operator check, and compiled by a backend that counts."""

import torch
import torch._dynamo

from tilesmith.workshop.checking.program_check import Wrong, kernels_run

SIZES = ((4, 33), (6, 33), (9, 33))
WIDE = (2, 5000)  # more columns than a block that is typed in
EPS = 2e-6  # an unusual value, so that a kernel with a number in its place is wrong
INSIDE_ONLY = (
    "check_operator",
    "check_wide_rows",
    "check_compiled",
    "measure",
)  # torch.compile works in the program's process


def inputs(rows, columns):
    x = torch.linspace(-3, 5, rows * columns)[torch.randperm(rows * columns)].reshape(rows, columns)
    x[0] = 1e-3  # so small that eps matters
    return x, torch.linspace(-1, 20, columns)


def norm(x, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + eps)


def expected(x, weight):
    return (norm(x) * weight).clamp(-10, 10)


def require_equal(found, wanted, what):
    if not isinstance(found, torch.Tensor) or found.shape != wanted.shape:
        raise Wrong(f"{what} returns {tuple(getattr(found, 'shape', ()))}, but {tuple(wanted.shape)} is wanted.")
    if found.dtype != wanted.dtype:
        raise Wrong(f"{what} returns {found.dtype}, but {wanted.dtype} is wanted: a dtype must not change.")
    if not torch.allclose(found, wanted, rtol=1e-5, atol=1e-6):
        place = (found - wanted).abs().argmax().item()
        raise Wrong(
            f"{what}: element {place} is {found.flatten()[place]:.5g}, but {wanted.flatten()[place]:.5g} is wanted. "
            "Values beyond 10 are clamped, all others are the norm times the weight."
        )


def check_operator(program):
    x, _ = inputs(*SIZES[0])
    before = x.clone()
    with kernels_run(needed=True):
        found = program.row_norm(x, EPS)
    if not torch.equal(x, before):
        raise Wrong(
            "row_norm changes its input, but mutates_args=() promises that it does not. Write into a new tensor."
        )
    require_equal(found, norm(x, EPS), f"row_norm with eps = {EPS:g}")
    if not isinstance(program.row_norm, torch._library.custom_ops.CustomOpDef):
        raise Wrong("row_norm is no operator any more: keep @torch.library.custom_op above it.")
    if program.row_norm._opoverload._schema.is_mutable:
        raise Wrong("mutates_args says that row_norm changes its input, and it does not: keep mutates_args=().")
    with torch._subclasses.FakeTensorMode() as mode:
        try:
            fake = program.row_norm(mode.from_tensor(x), EPS)
        except Exception:
            raise Wrong(
                "row_norm cannot run on tensors without memory, with which torch.compile traces. "
                "Tell it what the operator returns: @row_norm.register_fake."
            ) from None
    for what in ("shape", "dtype"):
        if getattr(fake, what) != getattr(found, what):
            raise Wrong(
                f"the fake implementation returns the {what} {getattr(fake, what)}, but row_norm returns "
                f"{getattr(found, what)}."
            )
    with kernels_run():
        checked = torch.library.opcheck(program.row_norm, (x, EPS), raise_exception=False)
    for name, result in checked.items():
        if result != "SUCCESS":
            raise Wrong(f"torch.library.opcheck fails at {name}: {' '.join(str(result).split())[:300]}")


def check_wide_rows(program):
    x, _ = inputs(*WIDE)
    with kernels_run():
        found = program.row_norm(x, EPS)
    if found.shape == x.shape and not torch.allclose(found, norm(x, EPS), rtol=1e-5, atol=1e-6):
        raise Wrong(
            f"row_norm is wrong for rows of {WIDE[1]} columns. A row has any width: compute BLOCK_SIZE from the number "
            "of columns."
        )


def check_eager(program):
    for sizes in SIZES:
        x, weight = inputs(*sizes)
        with kernels_run():
            require_equal(program.block(x, weight), expected(x, weight), f"block of {sizes[0]}×{sizes[1]}")


def compiled(program):
    """Compile the block for three sizes; return how many graphs were compiled, and check every result."""
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    function = torch.compile(program.block, backend=backend)
    per_call = []
    for sizes in SIZES:
        x, weight = inputs(*sizes)
        before = len(graphs)
        with kernels_run():
            require_equal(function(x, weight), expected(x, weight), f"the compiled block of {sizes[0]}×{sizes[1]}")
        per_call.append(len(graphs) - before)
    torch._dynamo.reset()
    return per_call


def check_compiled(program):
    per_call = compiled(program)
    if per_call[2]:
        raise Wrong(
            f"the third size compiles again: {per_call} graphs for three sizes. Which number of Python depends on it?"
        )


def measure(program):
    return {"graphs": compiled(program)[0]}
