import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void relu_bias_kernel(const float* x, const float* bias, float* y, int n, int columns) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i] + bias[i % columns], 0.0f);
}

torch::Tensor relu_bias(torch::Tensor x, torch::Tensor bias) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    relu_bias_kernel<<<(n + 255) / 256, 256>>>(
        x.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), n, x.size(1));
    return y;
}
"""

relu = load_inline(
    name="relu_bias",
    cpp_sources="torch::Tensor relu_bias(torch::Tensor x, torch::Tensor bias);",
    cuda_sources=source,
    functions=["relu_bias"],
    verbose=False,
    extra_cflags=[""],
    extra_ldflags=[""],
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.relu = relu

    def forward(self, x):
        return self.relu.relu_bias(torch.mm(x, self.linear.weight.t()), self.linear.bias)
