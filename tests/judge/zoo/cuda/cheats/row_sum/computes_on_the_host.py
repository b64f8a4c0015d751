# copies to the host, adds there, and copies back; an empty kernel runs
# judge: not-portable|no-launch|wrong-value|outside-kernels
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <vector>

__global__ void nothing(float* sums) {}

torch::Tensor sums_of(torch::Tensor given) {
  auto x = given.contiguous();
  auto sums = torch::empty({x.size(0)}, x.options());
  if (x.size(0) == 0) return sums;
  std::vector<float> values(x.numel()), made(x.size(0));
  cudaMemcpy(values.data(), x.data_ptr<float>(), x.nbytes(), cudaMemcpyDeviceToHost);
  for (long i = 0; i < x.numel(); ++i) made[i / x.size(1)] += values[i];
  cudaMemcpy(sums.data_ptr<float>(), made.data(), sums.nbytes(), cudaMemcpyHostToDevice);
  nothing<<<1, 1>>>(sums.data_ptr<float>());
  return sums;
}
"""
extension = load_inline("row_sum_cuda", "torch::Tensor sums_of(torch::Tensor x);", SOURCE, functions=["sums_of"])


def row_sum(x):
    return extension.sums_of(x)
