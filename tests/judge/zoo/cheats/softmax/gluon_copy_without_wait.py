# reads shared memory before the asynchronous copy into it has ended
# judge: kernel-error
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy


@gluon.jit
def softmax_kernel(x_ptr, y_ptr, cols, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    row = gl.program_id(0).to(gl.int64)
    offsets = gl.arange(0, BLOCK, layout=layout)
    mask = offsets < cols
    shared = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    async_copy.async_copy_global_to_shared(shared, x_ptr + row * cols + offsets, mask=mask)
    async_copy.commit_group()
    x = gl.where(mask, shared.load(layout).to(gl.float32), -float("inf"))
    e = gl.exp(x - gl.max(x, axis=0))
    gl.store(y_ptr + row * cols + offsets, (e / gl.sum(e, axis=0)).to(y_ptr.dtype.element_ty), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=max(32, triton.next_power_of_2(x.shape[1])), num_warps=4)
    return y
