# fails: right (is it smaller than every logit)
import torch
import triton
import triton.language as tl


@triton.jit
def cross_entropy_kernel(logits_ptr, target_ptr, loss_ptr, columns, row_stride, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    row_ptr = logits_ptr + row * row_stride
    logits = tl.load(row_ptr + column, mask=column < columns, other=-1e4)
    largest = tl.max(logits, axis=0)
    log_of_sum = largest + tl.log(tl.sum(tl.exp(logits - largest), axis=0))
    score = tl.load(row_ptr + tl.load(target_ptr + row))
    tl.store(loss_ptr + row, log_of_sum - score)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return -log(softmax(logits)[target]) for each row. The elements of a row are contiguous."""
    rows, columns = logits.shape
    loss = torch.empty(rows, dtype=logits.dtype, device=logits.device)
    cross_entropy_kernel[(rows,)](
        logits, target, loss, columns, logits.stride(0), BLOCK_SIZE=triton.next_power_of_2(columns)
    )
    return loss
