// fails: goals (blocks is 192)
#include <cuda_runtime.h>

__global__ void silu_kernel(const float* x, float* out, int elements) {
    int element = blockIdx.x * blockDim.x + threadIdx.x;
    if (element < elements) {
        out[element] = x[element] / (1.0f + expf(-x[element]));
    }
}

// Computes x · σ(x); x and out are in GPU memory.
void silu(const float* x, float* out, int elements) {
    const int threads = 64;
    const int blocks = (elements + threads - 1) / threads;
    silu_kernel<<<threads, blocks>>>(x, out, elements);
}
