"""Triangle multiplication a few rows of its result at a time, for memory.

Counted in sizes of z, with as many hidden channels as channels and not in float16, where x takes two: all at once the
forward holds z, a, b, x and y, of which a, b and x stay until the backward; and that holds 15. In chunks the forward
holds z, b and y, nothing stays but the arguments, and the backward holds z, dy, dz, dx and one of a and b; both of them
besides what they make of `chunk` rows.

- Incoming edges are outgoing edges of the transposed pairs, but for the output gate: a and b are made of a view of z.
- Row i of the product takes row i of a, and all of b.
- The backward makes everything again. It goes through rows of a with all of b, and leaves dx behind; and then, with all
  of a and dx, through rows of b. So no gradient of a or b is ever a sum over chunks, with a rounding for each.

It is put together from products and norms, each of which our kernels or PyTorch compute, as for any other call: PyTorch
multiplies float16 as single precision, and holds b in that besides. More goes through memory than with the kernels for
all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.layer_norm.backward import backward as norm_backward
from tilesmith.ops.layer_norm.operator import layer_norm
from tilesmith.ops.matmul import matmul
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.without_autocast import without_autocast
from tilesmith.ops.triangle_multiply.fused.backward import empty_gradients
from tilesmith.ops.triangle_multiply.problem import matrices_shape, product_dtype

sigmoid_backward = torch.ops.aten.sigmoid_backward  # of a gradient and the sigmoid's result


class Layer:
    """Parameters, and the sums of what chunks add to their gradients: in single precision or better."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    @cached_property
    def dweight(self) -> Tensor:
        return torch.zeros_like(self.weight, dtype=torch.promote_types(self.weight.dtype, torch.float32))

    @cached_property
    def dbias(self) -> Tensor:
        return self.dweight.new_zeros(len(self.weight))


class Linear(Layer):
    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def gradient(self, dy: Tensor, x: Tensor) -> Tensor:
        rows = dy.flatten(0, -2)
        self.dweight += matmul(rows.t(), x.flatten(0, -2), out_dtype=self.dweight.dtype)
        self.dbias += rows.sum(0, dtype=self.dbias.dtype)
        return dy @ self.weight


class Norm(Layer):
    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        super().__init__(weight, bias)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def gradient(self, dy: Tensor, x: Tensor) -> Tensor:
        if dispatch.kernels_can_run(x):
            dx, dweight, dbias = norm_backward(dy, x, self.weight, self.bias, self.eps, True, True)
        else:
            parameters = self.weight, self.bias
            _, mean, inverse_deviation = torch.native_layer_norm(x, x.shape[-1:], *parameters, self.eps)
            dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
                dy, x, x.shape[-1:], mean, inverse_deviation, *parameters, [True, True, True]
            )
        self.dweight += dweight
        self.dbias += dbias
        return dx  # type: ignore[no-any-return]  # neither is typed


class Operand:
    """a or b: σ(gate(zn)) · projection(zn), masked, as a matrix for each hidden channel."""

    def __init__(self, z: Tensor, mask: Tensor | None, norm: Norm, layer: Linear) -> None:
        self.z, self.norm, self.layer = z, norm, layer
        self.masked = None if mask is None else ~mask[..., None]

    def rows(self, rows: slice) -> Tensor:
        """[batch, hidden, rows, n]."""
        projection, gate = self.layer(self.norm(self.z[:, rows])).chunk(2, dim=-1)
        return self._without_masked(projection * torch.sigmoid(gate), rows).permute(0, 3, 1, 2)

    def gradient(self, d: Tensor, rows: slice) -> Tensor:
        """What these rows add to that of z."""
        zn = self.norm(self.z[:, rows])
        projection, gate = self.layer(zn).chunk(2, dim=-1)
        gate = torch.sigmoid(gate)
        d = self._without_masked(_channels_last(d), rows)
        dlayer = torch.cat([d * gate, sigmoid_backward(d * projection, gate)], dim=-1)
        return self.norm.gradient(self.layer.gradient(dlayer, zn), self.z[:, rows])

    def _without_masked(self, values: Tensor, rows: slice) -> Tensor:
        return values if self.masked is None else values.masked_fill(self.masked[:, rows], 0.0)


class Output:
    """y = σ(output gate(zn)) · output(output norm(x))."""

    def __init__(self, z: Tensor, norm: Norm, norm_of_product: Norm, layer: Linear, gate: Linear) -> None:
        self.z, self.norm, self.norm_of_product, self.layer, self.gate = z, norm, norm_of_product, layer, gate

    def rows(self, x: Tensor, rows: slice) -> Tensor:
        xn = self.norm_of_product(_channels_last(x)).to(self.z.dtype)
        return torch.sigmoid(self.gate(self.norm(self.z[:, rows]))) * self.layer(xn)

    def gradient(self, dy: Tensor, x: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """What these rows add to that of z, and that of x, as a matrix for each hidden channel."""
        x, zn = _channels_last(x), self.norm(self.z[:, rows])
        xn = self.norm_of_product(x).to(self.z.dtype)
        gate = torch.sigmoid(self.gate(zn))
        dgate = sigmoid_backward(dy * self.layer(xn), gate)
        dxn = self.layer.gradient(dy * gate, xn)
        dx = self.norm_of_product.gradient(dxn.to(x.dtype), x)
        dz = self.norm.gradient(self.gate.gradient(dgate, zn), self.z[:, rows])
        return dz, dx.permute(0, 3, 1, 2)


class Update:
    """The parts of one call, and how they go together."""

    def __init__(
        self, z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, projection_weight: Tensor,
        projection_bias: Tensor | None, gate_weight: Tensor, gate_bias: Tensor | None, output_norm_weight: Tensor,
        output_norm_bias: Tensor, output_weight: Tensor, output_bias: Tensor | None, output_gate_weight: Tensor,
        output_gate_bias: Tensor | None, outgoing: bool, eps: float, chunk: int, residual: bool,
    ) -> None:  # fmt: skip
        self.z, self.outgoing, self.residual = z, outgoing, residual
        self.chunks = [slice(start, min(start + chunk, z.shape[1])) for start in range(0, z.shape[1], chunk)]
        self.norm = Norm(norm_weight, norm_bias, eps)
        # Sums over residues may be beyond half precision: they are held, and normed, in single.
        self.product_dtype = dtype = product_dtype(z.dtype)
        output_norm = Norm(output_norm_weight.to(dtype), output_norm_bias.to(dtype), eps)
        gate, layer = Linear(output_gate_weight, output_gate_bias), Linear(output_weight, output_bias)
        self.output = Output(z, self.norm, output_norm, layer, gate)
        no_bias = z.new_zeros(len(gate_weight))
        both = (projection_weight, gate_weight)
        biases = [no_bias if bias is None else bias for bias in (projection_bias, gate_bias)]
        mask = None if mask is None else self.turned(mask)
        self.a, self.b = (  # of both, the first half of the rows is a's and the other is b's
            Operand(self.turned(z), mask, self.norm, Linear(_half(both, half), _half(biases, half))) for half in (0, 1)
        )

    def turned(self, of_pairs: Tensor) -> Tensor:
        """As if edges were outgoing."""
        return of_pairs if self.outgoing else of_pairs.transpose(1, 2)

    def whole(self, operand: Operand) -> Tensor:
        matrices = self.matrices()
        for rows in self.chunks:
            matrices[:, :, rows] = operand.rows(rows)
        return matrices

    def matrices(self) -> Tensor:
        """One for each hidden channel, with rows as matmul's kernels walk them fastest."""
        shape = matrices_shape(self.z.shape, self.output.layer.weight.shape[1])
        return self.z.new_empty(shape)[..., : self.z.shape[2]]

    def product(self, rows: slice, b: Tensor) -> Tensor:
        a = self.a.rows(rows).contiguous()
        return matmul(a, b.transpose(-1, -2), out_dtype=self.product_dtype)

    def result(self) -> Tensor:
        y, b = torch.empty_like(self.z), self.whole(self.b)
        for rows in self.chunks:
            y[:, rows] = self.output.rows(self.product(rows, b), rows)
            if self.residual:
                y[:, rows] += self.z[:, rows]
        return y

    def gradient(self, dy: Tensor) -> Tensor:
        """That of z; the layers and norms have summed up theirs."""
        dz, dx, other = torch.zeros_like(self.z), self.matrices(), self.whole(self.b)
        if self.residual:
            dz.copy_(dy)
        turned = self.turned(dz)
        for rows in self.chunks:
            of_gate, dx[:, :, rows] = self.output.gradient(dy[:, rows], self.product(rows, other), rows)
            dz[:, rows] += of_gate
            turned[:, rows] += self.a.gradient(matmul(dx[:, :, rows], other), rows)
        del other  # before as much is taken for a
        other = self.whole(self.a)
        for rows in self.chunks:
            turned[:, rows] += self.b.gradient(matmul(dx[..., rows].transpose(-1, -2), other), rows)
        return dz


def _half(tensors: Sequence[Tensor], which: int) -> Tensor:
    return torch.cat([tensor.chunk(2)[which] for tensor in tensors])


def _channels_last(matrices: Tensor) -> Tensor:
    return matrices.permute(0, 2, 3, 1).contiguous()


@kernels("triangle_multiply_chunked_forward")
def forward(
    z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor,
    projection_weight: Tensor, projection_bias: Tensor | None, gate_weight: Tensor, gate_bias: Tensor | None,
    output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor, output_bias: Tensor | None,
    output_gate_weight: Tensor, output_gate_bias: Tensor | None, outgoing: bool, eps: float, chunk: int, residual: bool,
) -> Tensor:  # fmt: skip
    return torch.empty_like(z)


@forward.composed
def compute_forward(z: Tensor, *arguments: Any) -> Tensor:
    with without_autocast(z):
        return Update(z, *arguments).result()


@kernels("triangle_multiply_chunked_backward")
def backward(
    dy: Tensor, z: Tensor, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor,
    projection_weight: Tensor, projection_bias: Tensor | None, gate_weight: Tensor, gate_bias: Tensor | None,
    output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor, output_bias: Tensor | None,
    output_gate_weight: Tensor, output_gate_bias: Tensor | None, outgoing: bool, eps: float, chunk: int, residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As the backward of all at once gives them."""
    return empty_gradients(z, output_weight)


@backward.composed
def compute_backward(dy: Tensor, z: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    with without_autocast(z):
        update = Update(z, *arguments)
        dz = update.gradient(dy)
    norm, output = update.norm, update.output
    output_norm = output.norm_of_product
    # The layers have a's projection and gate, and b's; wanted are a's and b's projection, and their gates.
    weights, biases = zip(*((side.layer.dweight, side.layer.dbias) for side in (update.a, update.b)), strict=True)
    gradients = (
        [_half(weights, 0), _half(weights, 1), output.gate.dweight], [output.layer.dweight],
        [
            output_norm.dweight, output_norm.dbias, output.layer.dbias, output.gate.dbias,
            norm.dweight, norm.dbias, _half(biases, 0), _half(biases, 1),
        ],
    )  # fmt: skip
    return dz, *(torch.cat(several).to(z.dtype) for several in gradients)
