// fails: goals (atomics)
#include <cuda_runtime.h>

const int THREADS = 64;

__global__ void sum_kernel(const float* x, float* total, int elements) {
    const int element = blockIdx.x * THREADS + threadIdx.x;
    if (element < elements) {
        atomicAdd(total, x[element]);
    }
}

// Computes the sum of x; x and total are in GPU memory.
void sum(const float* x, float* total, int elements) {
    cudaMemset(total, 0, sizeof(float));
    const int blocks = (elements + THREADS - 1) / THREADS;
    sum_kernel<<<blocks, THREADS>>>(x, total, elements);
}
