"""Five symptoms, in the order in which to look: the result, then the gradients, then the clock."""

import math
import random
from unittest import mock

import torch
import torch.nn.functional as F

from tilesmith.workshop.checking.pretended_gpu import PretendedGpu
from tilesmith.workshop.checking.program_check import Wrong, kernels_run

VOCABULARY, WIDTH, EPS = 50, 16, 1e-6
INSIDE_ONLY = ("check_gradients", "measure")  # autograd works in the program's process


def tokens():
    return torch.arange(30).reshape(3, 10) * 7 % VOCABULARY


def reference_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def model_of(program):
    torch.manual_seed(0)
    return program.Model()


def check_first_loss(program):
    model = model_of(program)
    with kernels_run(), torch.no_grad():
        found = float(program.loss(model, tokens()))
    guessing = math.log(VOCABULARY)
    if not abs(found - guessing) < 0.3:
        raise Wrong(
            f"the first loss is {found:.3g}, but a model that knows nothing has ln({VOCABULARY}) = {guessing:.3f}. "
            "It begins sure of wrong words: how large are the first weights?"
        )


def check_strides(program):
    weight = torch.linspace(0.5, 2, 40)
    base = torch.linspace(-3, 2, 6 * WIDTH)[torch.randperm(6 * WIDTH)]
    for what, x in {
        "contiguous": base.view(6, WIDTH),
        "transposed": base.view(WIDTH, 6).T,
        "expanded": base[:WIDTH].expand(6, WIDTH),
        "narrow": base[: 6 * 13].view(6, 13),
        "wide": base[: 2 * 40].view(2, 40),
    }.items():
        with kernels_run():
            found = program.rms_norm(x, weight[: x.shape[1]].clone())
        wanted = reference_norm(x, weight[: x.shape[1]].clone())
        if found.shape != wanted.shape or not torch.allclose(found, wanted, atol=1e-5):
            raise Wrong(
                f"rms_norm of a {what} matrix with strides {x.stride()} is wrong. "
                "The kernel gets both strides of x: does every address use them? "
                "Does a block cover a row of any length?"
            )


class Knows:
    """A model that is sure of a word: of the next one, or of the same one."""

    def __init__(self, shift):
        self.shift = shift

    def __call__(self, given):
        words = (given + self.shift) % VOCABULARY
        return 50.0 * F.one_hot(words, VOCABULARY).float()


def check_labels(program):
    text = torch.arange(24).reshape(2, 12)
    following, same, after = (float(program.loss(Knows(shift), text)) for shift in (1, 0, 2))
    if following < 0.01:
        logits = torch.randn(*text.shape, VOCABULARY)
        found = float(program.loss(lambda given: logits, text))
        wanted = float(F.cross_entropy(logits[:, :-1].flatten(0, 1), text[:, 1:].flatten()))
        if abs(found - wanted) > 1e-4:
            raise Wrong(f"the loss is {found:.5g}, but the mean over every word except the first is {wanted:.5g}.")
        return
    if after < 0.01:
        raise Wrong(
            "a model that always knows the word after the next has a loss of 0, and one that knows the "
            "next word does not. "
            "The labels are shifted twice."
        )
    if same < 0.01:
        raise Wrong("a model that repeats the same word has a loss of 0: the labels are not shifted at all.")
    raise Wrong(f"a model that always knows the next word has a loss of {following:.3g}, but 0 is right.")


def check_gradients(program):
    model = model_of(program)
    for one in model.parameters():
        if one.ndim == 1:  # a norm's weight: with ones, a backward without it would be right
            one.data = torch.linspace(0.5, 2, len(one))
    with kernels_run(needed=True):
        program.loss(model, tokens()).backward()
    cut = [name for name, one in model.named_parameters() if one.grad is None or not one.grad.abs().max() > 0]
    if cut:
        raise Wrong(
            f"{len(cut)} of {len(list(model.parameters()))} parameters get no gradient: {', '.join(cut)}. "
            "A kernel that writes into torch.empty is invisible to autograd: give it a backward with "
            "torch.autograd.Function."
        )
    found = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    with mock.patch.object(program, "rms_norm", reference_norm), kernels_run():
        program.loss(model, tokens()).backward()
    for name, one in model.named_parameters():
        if not torch.allclose(found[name], one.grad, rtol=1e-3, atol=1e-6):
            raise Wrong(f"the gradient of {name} differs from that of the norm in plain PyTorch: look at backward.")


def check_clock(program):
    gpu = PretendedGpu()
    calls = []
    length = random.uniform(4, 6)

    def work():
        calls.append(1)
        gpu.launch(300.0 if len(calls) == 1 else length)

    with gpu.in_torch(), mock.patch("time.perf_counter", side_effect=lambda: gpu.host / 1000):
        found = program.time_ms(work)
    if found < length - 0.1:
        raise Wrong(
            f"time_ms returns {found:.3g} ms for work of {length:.3g} ms: the clock was read before the work was done. "
            "Wait first."
        )
    if found > length + 0.5:
        raise Wrong(
            f"time_ms returns {found:.3g} ms for work of {length:.3g} ms: work of an earlier call is part of it. Warm "
            "up, and wait."
        )


def measure(program):
    return {"vocabulary": program.VOCABULARY, "parameters": len(list(program.Model().parameters()))}
