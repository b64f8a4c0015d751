// fails: goals (warp_efficiency)
#include <cuda_runtime.h>

const int THREADS = 64;

__global__ void sum_kernel(const float* x, float* total, int elements) {
    __shared__ float partial[THREADS];
    const int thread = threadIdx.x;
    const int element = blockIdx.x * THREADS + thread;
    partial[thread] = element < elements ? x[element] : 0.0f;
    __syncthreads();
    if (thread == 0) {
        for (int other = 1; other < THREADS; other++) {
            partial[0] += partial[other];
        }
    }
    if (thread == 0) {
        atomicAdd(total, partial[0]);
    }
}

// Computes the sum of x; x and total are in GPU memory.
void sum(const float* x, float* total, int elements) {
    cudaMemset(total, 0, sizeof(float));
    const int blocks = (elements + THREADS - 1) / THREADS;
    sum_kernel<<<blocks, THREADS>>>(x, total, elements);
}
