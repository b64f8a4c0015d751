// fails: runs (data race: blocks)
#include <cuda_runtime.h>

const int THREADS = 64;

__global__ void rms_norm_kernel(const float* x, const float* weight, float* out, int columns, float epsilon) {
    __shared__ float partial[THREADS];
    const int thread = threadIdx.x;
    const float* row = x + blockIdx.x * columns;
    float squares = 0.0f;
    for (int column = thread; column < columns; column += THREADS) {
        squares += row[column] * row[column];
    }
    partial[thread] = squares;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            partial[thread] += partial[thread + half];
        }
        __syncthreads();
    }
    const float inverse_rms = rsqrtf(partial[0] / columns + epsilon);
    for (int column = thread; column < columns; column += THREADS) {
        out[column] = row[column] * inverse_rms * weight[column];
    }
}

// Divides each row of x by the root of its mean square, times the weight; everything is in GPU memory.
void rms_norm(const float* x, const float* weight, float* out, int rows, int columns, float epsilon) {
    rms_norm_kernel<<<rows, THREADS>>>(x, weight, out, columns, epsilon);
}
