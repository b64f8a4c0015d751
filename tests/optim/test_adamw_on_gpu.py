# mypy: disable-error-code="no-untyped-call"
# PyTorch types no stream.
"""AdamW on a GPU: torch's results, CUDA graphs, and no wait of the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from adamw_steps import DTYPES, ROUNDINGS, SHAPES, apart, assert_same, give_gradients, parameters, step

from tilesmith.ops.runtime.plan import Plan
from tilesmith.optim import AdamW


def on_a_gpu(dtype: torch.dtype) -> dict[str, Any]:
    """Return the options of torch's most exact step. In bf16 and fp16 its fused step rounds once. In float32 its fused
    step computes 1 − β₂ and 1 − β₂ᵗ in float32 on the GPU, with errors of about 100 roundings."""
    return {"foreach": False} if dtype == torch.float32 else {"fused": True}


# In bf16 and fp16 these errors matter too: now and then an element is rounded to the other side, and later steps
# start from there.
ROUNDINGS_ON_A_GPU = {torch.float32: 12.0, torch.bfloat16: 4.0, torch.float16: 4.0}


def count_on_the_host(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["step"] = state["step"].cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}], ids=["host", "fused", "capturable"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ten_steps_match_torch_on_a_gpu(dtype: torch.dtype, options: dict[str, Any], runs: list[Plan]) -> None:
    shapes = (*SHAPES, (300, 1024))
    ours = AdamW(parameters(dtype, shapes, "cuda"), lr=1e-2, weight_decay=0.1, **options)
    theirs = torch.optim.AdamW(parameters(dtype, shapes, "cuda"), lr=1e-2, weight_decay=0.1, **on_a_gpu(dtype))
    step(ours)
    step(theirs)
    assert {state["step"].device.type for state in ours.state.values()} == {"cuda" if options else "cpu"}
    for one in (ours, theirs):
        count_on_the_host(one)
    assert_same(ours, theirs, ROUNDINGS_ON_A_GPU[dtype])
    assert len(runs) == 10


@pytest.mark.gpu
def test_cuda_graph_captures_a_step() -> None:
    rate = torch.tensor(1e-2, device="cuda")
    ours = AdamW(parameters(device="cuda"), lr=rate, capturable=True)
    theirs = torch.optim.AdamW(parameters(device="cuda"), lr=rate.clone(), foreach=True, capturable=True)
    ones, others = (one.param_groups[0]["params"] for one in (ours, theirs))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(ours, 2)
    torch.cuda.synchronize()
    step(theirs, 2)
    ours.zero_grad(set_to_none=True)
    sources = [torch.zeros_like(one) for one in ones]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one, source in zip(ones, sources, strict=True):
            one.grad = source * 1  # in the graph's memory
        ours.step()
    of_the_graph = [one.grad for one in ones]
    for number in range(2, 7):
        give_gradients(others, number)
        for source, other in zip(sources, others, strict=True):
            source.copy_(other.grad)
        if number == 4:
            rate.fill_(1e-3)
            theirs.param_groups[0]["lr"].fill_(1e-3)
        theirs.step()
        graph.replay()
        if number == 5:  # an eager step with other gradients must not change the graph's table
            step(ours, 1, first=20)
            step(theirs, 1, first=20)
            for one, gradient in zip(ones, of_the_graph, strict=True):
                one.grad = gradient
    torch.cuda.synchronize()
    assert_same(ours, theirs, ROUNDINGS[torch.float32])
    assert ours.state[ones[0]]["step"].item() == 8


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["host", "fused"])
def test_step_does_not_synchronise(options: dict[str, Any]) -> None:
    ours = AdamW(parameters(device="cuda"), **options)
    step(ours, 2)
    give_gradients(ours.param_groups[0]["params"], 2)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    theirs = torch.optim.AdamW(parameters(device="cuda"), **on_a_gpu(torch.float32))
    step(theirs, 3)
    for one, wanted in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        assert apart(one, wanted) <= ROUNDINGS[torch.float32]
