// fails: runs (data race: blocks)
#include <cuda_runtime.h>

const int THREADS = 64;
const int EACH = 4;  // elements of a thread

// 1 + x + x²/2 + x³/6 + x⁴/24, the beginning of the exponential series.
__device__ float series(float x) {
    const float factors[5] = {1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
    float result = 0.0f;
#pragma unroll
    for (int power = 0; power < 5; ++power) {
        result = result * x + factors[power];
    }
    return result;
}

__global__ void series_kernel(const float* x, float* y, int elements) {
    const int first = blockIdx.x * THREADS * EACH + threadIdx.x;
    float values[EACH];
#pragma unroll
    for (int turn = 0; turn < EACH; ++turn) {
        const int element = first + turn * THREADS * EACH;
        values[turn] = element < elements ? x[element] : 0.0f;
    }
#pragma unroll
    for (int turn = 0; turn < EACH; ++turn) {
        const int element = first + turn * THREADS * EACH;
        if (element < elements) {
            y[element] = series(values[turn]);
        }
    }
}

// Computes y = series(x); both are in GPU memory.
void apply_series(const float* x, float* y, int elements) {
    const int blocks = (elements + THREADS * EACH - 1) / (THREADS * EACH);
    series_kernel<<<blocks, THREADS>>>(x, y, elements);
}
