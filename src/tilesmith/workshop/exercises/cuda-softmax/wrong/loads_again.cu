// fails: goals (global_load_requests
#include <cuda_runtime.h>

const int THREADS = 64;

__device__ float larger(float one, float other) { return one > other ? one : other; }
__device__ float sum(float one, float other) { return one + other; }

// Returns the values of all threads combined; every thread of the block must call it.
template <typename Combine> __device__ float over_block(float value, float* scratch, Combine combine) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            scratch[threadIdx.x] = combine(scratch[threadIdx.x], scratch[threadIdx.x + stride]);
        }
        __syncthreads();
    }
    const float result = scratch[0];
    __syncthreads();
    return result;
}

__global__ void softmax_kernel(const float* x, float* y, int columns) {
    extern __shared__ float row[];
    float* scratch = row + columns;
    const float* mine = x + blockIdx.x * columns;
    float largest = -INFINITY;
    for (int column = threadIdx.x; column < columns; column += THREADS) {
        row[column] = mine[column];
        largest = larger(largest, row[column]);
    }
    largest = over_block(largest, scratch, larger);
    float total = 0.0f;
    for (int column = threadIdx.x; column < columns; column += THREADS) {
        row[column] = expf(mine[column] - largest);
        total += row[column];
    }
    total = over_block(total, scratch, sum);
    for (int column = threadIdx.x; column < columns; column += THREADS) {
        y[blockIdx.x * columns + column] = row[column] / total;
    }
}

// Computes the softmax of each row of x, which has any number of columns; both are in GPU memory.
void softmax(const float* x, float* y, int rows, int columns) {
    softmax_kernel<<<rows, THREADS, (columns + THREADS) * sizeof(float)>>>(x, y, columns);
}
