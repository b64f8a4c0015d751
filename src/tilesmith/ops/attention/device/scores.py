"""A tile of scores, as softmax takes them, and of the weights that a backward finds again from them."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from tilesmith.ops.attention.device.tiles import head_start, is_seen
from tilesmith.ops.device.constants import LOG2_E


@triton.jit
def scored(
    products, place, head, query, key, rows, columns, n_queries, n_keys, scale, softcap, bias_ptr, bias_strides,
    BIAS_DESCRIBED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What softmax raises two to, in two factors, and the slope of the soft cap there.

    Two factors, because without bias and soft cap the second is all there is to do, and it can wait for the subtraction
    of the maximum, with which it is one instruction. `rows` count queries from `query` on, `columns` keys from
    `key` on. The sequences of a member of the batch share its bias.
    """
    if softcap is not None:
        fraction = tanh(products * (scale / softcap), EXACT)
        scores = fraction * (softcap * LOG2_E)
        slope = 1 - fraction * fraction
        factor = 1.0
    else:
        scores = products
        slope = 1.0
        factor = scale * LOG2_E
    if bias_ptr is not None:
        if BIAS_DESCRIBED:
            bias = described_bias(bias_ptr, bias_strides, place[0], head, query, key, rows, columns)
        else:
            start = head_start(bias_ptr, bias_strides, (place[0],), head, query)
            start += tl.cast(key, tl.int64) * bias_strides[3]
            inside = (query + rows < n_queries) & (key + columns < n_keys)
            bias = tl.load(start + (rows * bias_strides[2] + columns * bias_strides[3]), mask=inside, other=0.0)
        scores = scores * factor + bias.to(products.dtype) * LOG2_E
        factor = 1.0
    return scores, factor, slope


@triton.jit
def weighed(
    products, place, head, query, key, rows, columns, lse, attended, bias_ptr, bias_strides,
    n_queries, n_keys, left, right, scale, softcap,
    BIAS_DESCRIBED: tl.constexpr, EXACT: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """A tile of softmax's weights, found again, and the slope of the soft cap there.

    What belongs to queries broadcasts as `rows` does, which lie along either side of the tile, and which keys are
    attended to as `columns` does.
    """
    scores, factor, slope = scored(
        products, place, head, query, key, rows, columns, n_queries, n_keys, scale, softcap, bias_ptr, bias_strides,
        BIAS_DESCRIBED, EXACT,
    )  # fmt: skip
    weights = tl.exp2(scores * factor - lse)
    if CHECKED:
        weights = tl.where(is_seen(query + rows, key + columns, n_queries, n_keys, left, right), weights, 0.0)
    if attended is not None:
        weights = tl.where(attended, weights, 0.0)
    return weights, slope


@triton.jit
def described_bias(bias, bias_strides, sequence, head, query, key, rows, columns):
    """A tile of a bias that the copy engine walks, zeros beyond its edges; turned where queries lie along columns.

    A stride of zero is that of sequences or heads that share one matrix, of which the descriptor then knows one.
    """
    sequence = tl.where(bias_strides[0] == 0, 0, sequence)
    head = tl.where(bias_strides[1] == 0, 0, head)
    TURNED: tl.constexpr = rows.shape[0] == 1
    QUERIES: tl.constexpr = rows.shape[1] if TURNED else rows.shape[0]
    KEYS: tl.constexpr = columns.shape[0] if TURNED else columns.shape[1]
    tile = bias.load([sequence, head, query, key]).reshape(QUERIES, KEYS)
    return tl.trans(tile) if TURNED else tile


@triton.jit
def tanh(x, EXACT: tl.constexpr):
    """Off by a rounding of y where EXACT, else by one of 1, for five instructions."""
    return libdevice.tanh(x) if EXACT else 1 - 2 / (1 + tl.exp2(x * (2 * LOG2_E)))
