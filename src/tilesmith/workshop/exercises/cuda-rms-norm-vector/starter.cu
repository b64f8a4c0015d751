#include <cuda_runtime.h>

const int THREADS = 64;

__global__ void rms_norm_kernel(const float* x, const float* weight, float* out, int columns, float epsilon) {
    __shared__ float partial[THREADS];
    const int thread = threadIdx.x;
    const float* row = x;
    float squares = 0.0f;
    // TODO: sum the squares of this thread's elements
    partial[thread] = squares;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            partial[thread] += partial[thread + half];
        }
        __syncthreads();
    }
    const float inverse_rms = 1.0f  /* TODO: one over the root of the mean square */;
    // TODO: store this thread's elements of the result
}

// Divides x by the root of its mean square, times the weight; everything is in GPU memory.
void rms_norm(const float* x, const float* weight, float* out, int columns, float epsilon) {
    rms_norm_kernel<<<1, THREADS>>>(x, weight, out, columns, epsilon);
}
