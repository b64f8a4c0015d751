#include <cuda_runtime.h>

__global__ void silu_kernel(const float* x, float* out, int elements) {
    int element = 0;  // TODO: this thread's element
    if (true) {  // TODO: does this thread have an element?
        out[element] = x[element] / (1.0f + expf(-x[element]));
    }
}

// Computes x · σ(x); x and out are in GPU memory.
void silu(const float* x, float* out, int elements) {
    const int threads = 64;
    const int blocks = 0;  // TODO: enough blocks for all elements
    silu_kernel<<<blocks, threads>>>(x, out, elements);
}
