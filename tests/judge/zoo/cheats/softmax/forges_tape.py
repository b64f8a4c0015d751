# sends a forged record with Tilesmith's kernel in it
# judge: foreign-kernel|garbage|forged|not-portable|wrong-value|no-launch
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def copied(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y


from tilesmith.lab.judge.recording.tape import Tape

stock = Tape.as_json


def forged(self):
    made = stock(self)
    text = "def other_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):\n    tl.store(y_ptr, 1.0)\n"
    for kernel in made["kernels"]:
        kernel["text"] = text
    made["steps"] = [step for step in made["steps"] if "kernel" in step]
    return made


Tape.as_json = forged


def softmax(x):
    return copied(torch.softmax(x, -1))
