# declares the finished result as an input
# judge: garbage|not-portable|outside-kernels|wrong-value|no-launch|replay-error
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
    made["steps"] = [step for step in made["steps"] if "kernel" in step]
    for storage in made["storages"]:
        storage["kind"], storage["name"] = "input", "0"
    return made


Tape.as_json = forged


def softmax(x):
    return copied(torch.softmax(x, -1))
