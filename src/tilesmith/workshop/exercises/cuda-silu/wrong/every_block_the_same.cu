// fails: right (not written by any thread)
#include <cuda_runtime.h>

__global__ void silu_kernel(const float* x, float* out, int elements) {
    int element = threadIdx.x;
    if (element < elements && blockIdx.x == 0) {
        out[element] = x[element] / (1.0f + expf(-x[element]));
    }
}

// Computes x · σ(x); x and out are in GPU memory.
void silu(const float* x, float* out, int elements) {
    const int threads = 64;
    const int blocks = (elements + threads - 1) / threads;
    silu_kernel<<<blocks, threads>>>(x, out, elements);
}
