"""Triangle multiplication in chunks of rows of its result, to save memory.

In sizes of z, with as many hidden channels as channels, and not float16, whose x is twice as large: all rows at once,
the forward holds z, a, b, x and y. Of these a, b and x stay until the backward, which holds 15. In chunks the forward
holds z, b and y, only the arguments stay, and the backward holds z, dy, dz, dx and one of a and b. Both hold `chunk`
rows of intermediate results besides.

- Incoming edges are outgoing edges of the transposed pairs, except for the output gate: a and b come from a view of z.
- Row i of the product needs row i of a, and all of b.
- The backward recomputes everything. It walks over rows of a with all of b, and keeps dx. Then it walks over rows of b
  with all of a and dx. So no gradient of a or b is a sum over chunks, with a rounding for each.

The update is built from matmul and layer_norm calls, and each dispatches to our kernels or PyTorch. PyTorch multiplies
float16 as float32, and holds a float32 copy of b. More data goes through memory than with the fused kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.layer_norm.backward import backward as norm_backward
from tilesmith.ops.layer_norm.forward import forward as norm_forward
from tilesmith.ops.layer_norm.operator import layer_norm, shifted
from tilesmith.ops.matmul import matmul
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.composing.without_autocast import without_autocast
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.triangle_multiply.fused.operators import empty_gradients
from tilesmith.ops.triangle_multiply.parameters import STACKED, VECTORS, Parameters
from tilesmith.ops.triangle_multiply.problem import matrices_shape, product_dtype

sigmoid_backward = torch.ops.aten.sigmoid_backward  # takes a gradient and the sigmoid's result


class Layer:
    """A weight and a bias, and their gradients summed over chunks, in single precision or better."""

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

    def with_statistics(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the norm of x, and what its gradient needs of each row."""
        if dispatch.kernels_can_run(x):
            y, *statistics = norm_forward(x, self.weight, self.bias, self.eps, True)
        else:
            rows, weight, bias = self._for_torch(x)
            y, *statistics = torch.native_layer_norm(rows, x.shape[-1:], weight, bias, self.eps)
            y = y.to(x.dtype)
        return y, tuple(statistics)

    def gradient(self, dy: Tensor, x: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        if dispatch.kernels_can_run(x):
            dx, dweight, dbias = norm_backward(dy, x, self.weight, self.bias, *statistics, True, True)
        else:
            rows, weight, bias = self._for_torch(x)
            dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
                dy.to(rows.dtype), rows, x.shape[-1:], *statistics, weight, bias, [True, True, True]
            )
            dx = dx.to(x.dtype)
        self.dweight += dweight
        self.dbias += dbias
        return dx  # type: ignore[no-any-return]  # neither is typed

    def _for_torch(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, weight and bias of a norm by PyTorch. On CPUs constant rows are exact in single precision."""
        dtype = torch.promote_types(x.dtype, torch.float32) if x.device.type == "cpu" else x.dtype
        assert self.bias is not None
        return shifted(x.to(dtype)), self.weight.to(dtype), self.bias.to(dtype)


class Factor:
    """a or b: mask · σ(gate(zn)) · projection(zn), as a matrix for each hidden channel."""

    def __init__(self, z: Tensor, mask: Tensor | None, norm: Norm, layer: Linear) -> None:
        self.z, self.norm, self.layer = z, norm, layer
        self.masked = None if mask is None else (mask == 0)[..., None]

    def rows(self, rows: slice) -> Tensor:
        """Return some rows of all matrices, [batch, hidden, rows, n]."""
        projection, gate = self.layer(self.norm(self.z[:, rows])).chunk(2, dim=-1)
        return self._without_masked(projection * torch.sigmoid(gate), rows).permute(0, 3, 1, 2)

    def gradient(self, d: Tensor, rows: slice) -> Tensor:
        """Return what these rows add to the gradient of z."""
        zn, statistics = self.norm.with_statistics(self.z[:, rows])
        projection, gate = self.layer(zn).chunk(2, dim=-1)
        gate = torch.sigmoid(gate)
        d = self._without_masked(_channels_last(d), rows)
        dlayer = torch.cat([d * gate, sigmoid_backward(d * projection, gate)], dim=-1)
        return self.norm.gradient(self.layer.gradient(dlayer, zn), self.z[:, rows], statistics)

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
        """Return what these rows add to the gradient of z, and the gradient of x, [batch, hidden, rows, n]."""
        x = _channels_last(x)
        zn, statistics = self.norm.with_statistics(self.z[:, rows])
        xn, statistics_of_product = self.norm_of_product.with_statistics(x)
        xn = xn.to(self.z.dtype)
        gate = torch.sigmoid(self.gate(zn))
        dgate = sigmoid_backward(dy * self.layer(xn), gate)
        dxn = self.layer.gradient(dy * gate, xn)
        dx = self.norm_of_product.gradient(dxn.to(x.dtype), x, statistics_of_product)
        dz = self.norm.gradient(self.gate.gradient(dgate, zn), self.z[:, rows], statistics)
        return dz, dx.permute(0, 3, 1, 2)


class Update:
    """The layers of one call, its result and its gradient."""

    def __init__(
        self, z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], outgoing: bool, eps: float, chunk: int,
        residual: bool,
    ) -> None:  # fmt: skip
        self.z, self.outgoing, self.residual = z, outgoing, residual
        self.chunks = [slice(start, min(start + chunk, z.shape[1])) for start in range(0, z.shape[1], chunk)]
        self.norm = Norm(parameters.norm_weight, parameters.norm_bias, eps)
        # Sums over residues may overflow float16: x and its norm are float32 then.
        self.product_dtype = dtype = product_dtype(z.dtype)
        output_norm = Norm(parameters.output_norm_weight.to(dtype), parameters.output_norm_bias.to(dtype), eps)
        gate = Linear(parameters.output_gate_weight, parameters.output_gate_bias)
        layer = Linear(parameters.output_weight, parameters.output_bias)
        self.output = Output(z, self.norm, output_norm, layer, gate)
        no_bias = z.new_zeros(len(parameters.gate_weight))
        weights = (parameters.projection_weight, parameters.gate_weight)
        biases = [no_bias if bias is None else bias for bias in (parameters.projection_bias, parameters.gate_bias)]
        mask = None if mask is None else self.as_outgoing(mask)
        self.a, self.b = (  # the first half of a layer's rows is for a, the second for b
            Factor(self.as_outgoing(z), mask, self.norm, Linear(_half(weights, half), _half(biases, half)))
            for half in (0, 1)
        )

    def as_outgoing(self, of_pairs: Tensor) -> Tensor:
        """Return a view of a tensor of pairs in which incoming edges are outgoing."""
        return of_pairs if self.outgoing else of_pairs.transpose(1, 2)

    def all_rows(self, factor: Factor) -> Tensor:
        """Return all rows of a or b, computed chunk by chunk."""
        matrices = self.matrices()
        for rows in self.chunks:
            matrices[:, :, rows] = factor.rows(rows)
        return matrices

    def matrices(self) -> Tensor:
        """Return memory for an n × n matrix for each hidden channel, laid out for matmul's fastest kernels."""
        shape = matrices_shape(self.z.shape, self.output.layer.weight.shape[1])
        return self.z.new_empty(shape)[..., : self.z.shape[2]]

    def product(self, rows: slice, b: Tensor) -> Tensor:
        """Return some rows of x, [batch, hidden, rows, n]."""
        a = self.a.rows(rows).contiguous()
        return matmul(a, b.transpose(-1, -2), out_dtype=self.product_dtype)

    def result(self) -> Tensor:
        y, b = torch.empty_like(self.z), self.all_rows(self.b)
        for rows in self.chunks:
            y[:, rows] = self.output.rows(self.product(rows, b), rows)
            if self.residual:
                y[:, rows] += self.z[:, rows]
        return y

    def gradient(self, dy: Tensor) -> Tensor:
        """Return dz. The layers and norms then hold the sums of their own gradients."""
        dz, dx, other = torch.zeros_like(self.z), self.matrices(), self.all_rows(self.b)
        if self.residual:
            dz.copy_(dy)
        dz_outgoing = self.as_outgoing(dz)
        for rows in self.chunks:
            dz_of_gate, dx[:, :, rows] = self.output.gradient(dy[:, rows], self.product(rows, other), rows)
            dz[:, rows] += dz_of_gate
            dz_outgoing[:, rows] += self.a.gradient(matmul(dx[:, :, rows], other), rows)
        del other  # frees b before a takes as much memory
        other = self.all_rows(self.a)
        for rows in self.chunks:
            dz_outgoing[:, rows] += self.b.gradient(matmul(dx[..., rows].transpose(-1, -2), other), rows)
        return dz


def _half(tensors: Sequence[Tensor], which: int) -> Tensor:
    """Return the first or second half of each tensor's rows, one below the other."""
    return torch.cat([tensor.chunk(2)[which] for tensor in tensors])


def _channels_last(matrices: Tensor) -> Tensor:
    """Return [batch, hidden, rows, n] as contiguous [batch, rows, n, hidden]."""
    return matrices.permute(0, 2, 3, 1).contiguous()


@kernels("triangle_multiply_chunked_forward")
@flat_arguments
def forward(
    z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], outgoing: bool, eps: float, chunk: int,
    residual: bool,
) -> Tensor:  # fmt: skip
    return torch.empty_like(z)


@forward.composed
@flat_arguments
def compute_forward(z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], *numbers: Any) -> Tensor:
    with without_autocast(z):
        return Update(z, mask, parameters, *numbers).result()


@kernels("triangle_multiply_chunked_backward")
@flat_arguments
def backward(
    dy: Tensor, z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], outgoing: bool, eps: float, chunk: int,
    residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dz and the gradients of the parameters, as `split_gradients` takes them."""
    return empty_gradients(z, parameters.output_weight)


@backward.composed
@flat_arguments
def compute_backward(
    dy: Tensor, z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], *numbers: Any
) -> tuple[Tensor, ...]:
    with without_autocast(z):
        update = Update(z, mask, parameters, *numbers)
        dz = update.gradient(dy)
    output = update.output
    # The layers hold the projection and gate of a, and those of b. Each gradient holds the rows for a, then for b.
    weights, biases = zip(*((side.layer.dweight, side.layer.dbias) for side in (update.a, update.b)), strict=True)
    found = {
        **_gradients("norm", update.norm), **_gradients("output_norm", output.norm_of_product),
        **_gradients("output", output.layer), **_gradients("output_gate", output.gate),
        "projection_weight": _half(weights, 0), "projection_bias": _half(biases, 0),
        "gate_weight": _half(weights, 1), "gate_bias": _half(biases, 1),
    }  # fmt: skip
    dweights = torch.cat([found[f"{layer}_weight"] for layer in STACKED])
    dvectors = torch.cat([found[name] for name in VECTORS])
    return dz, *(gradient.to(z.dtype) for gradient in (dweights, found["output_weight"], dvectors))


def _gradients(name: str, layer: Layer) -> dict[str, Tensor]:
    return {f"{name}_weight": layer.dweight, f"{name}_bias": layer.dbias}
