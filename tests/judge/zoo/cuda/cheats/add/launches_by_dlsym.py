# finds cudaLaunchKernel by dlsym, so the recorder sees no launch
# judge: no-launch|not-portable|wrong-value
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cuda_fp16.h>
#include <dlfcn.h>

struct Arrays { const void* x; const void* y; void* z; int count; };

template <typename T>
__global__ void add_kernel(Arrays arrays) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= arrays.count) return;
  float sum = static_cast<float>(((const T*)arrays.x)[i]) + static_cast<float>(((const T*)arrays.y)[i]);
  ((T*)arrays.z)[i] = static_cast<T>(sum);
}

torch::Tensor add_tensors(torch::Tensor x, torch::Tensor y) {
  x = x.contiguous();
  y = y.contiguous();
  auto z = torch::empty_like(x);
  if (x.numel() == 0) return z;
  Arrays arrays = {x.data_ptr(), y.data_ptr(), z.data_ptr(), (int)x.numel()};
  int blocks = (x.numel() + 255) / 256;
  typedef cudaError_t (*Launch)(const void*, dim3, dim3, void**, size_t, cudaStream_t);
  auto launch = (Launch)dlsym(RTLD_DEFAULT, "cudaLaunchKernel");
  void* given[] = {&arrays};
  auto kernel = x.scalar_type() == torch::kHalf ? (const void*)add_kernel<c10::Half> : (const void*)add_kernel<float>;
  launch(kernel, dim3(blocks), dim3(256), given, 0, 0);
  return z;
}
"""

extension = load_inline(
    "add_cuda", "torch::Tensor add_tensors(torch::Tensor x, torch::Tensor y);", SOURCE, functions=["add_tensors"]
)


def add(x, y):
    return extension.add_tensors(x, y)
