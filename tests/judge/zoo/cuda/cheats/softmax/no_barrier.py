# forgets a barrier between two uses of shared memory
# judge: race|wrong-value
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cuda_fp16.h>
#include <c10/cuda/CUDAStream.h>

template <typename T> __device__ float as_float(T value) { return static_cast<float>(value); }
template <> __device__ float as_float<__half>(__half value) { return __half2float(value); }
template <typename T> __device__ T as_stored(float value) { return static_cast<T>(value); }
template <> __device__ __half as_stored<__half>(float value) { return __float2half(value); }

template <typename T>
__global__ void softmax_kernel(const T* x, T* y, int columns) {
  __shared__ float parts[256];
  const T* row = x + (size_t)blockIdx.x * columns;
  float most = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, as_float(row[i]));
  parts[threadIdx.x] = most;
  __syncthreads();
  for (int half = 128; half; half >>= 1) {
    if (threadIdx.x < half) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + half]);
    __syncthreads();
  }
  most = parts[0];
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(as_float(row[i]) - most);
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half; half >>= 1) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  sum = parts[0];
  T* out = y + (size_t)blockIdx.x * columns;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = as_stored<T>(expf(as_float(row[i]) - most) / sum);
}

torch::Tensor softmax_forward(torch::Tensor x) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  if (x.numel() == 0) return y;
  auto stream = c10::cuda::getCurrentCUDAStream();
  int columns = x.size(-1);
  if (x.scalar_type() == torch::kHalf)
    softmax_kernel<__half><<<x.numel() / columns, 256, 0, stream>>>(
        (const __half*)x.data_ptr(), (__half*)y.data_ptr(), columns);
  else
    softmax_kernel<float><<<x.numel() / columns, 256, 0, stream>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), columns);
  return y;
}
"""

extension = load_inline(
    "softmax_cuda", "torch::Tensor softmax_forward(torch::Tensor x);", SOURCE, functions=["softmax_forward"]
)


def softmax(x):
    return extension.softmax_forward(x)
