#include <cuda_runtime.h>

const int THREADS = 64;

// y = x with each pair (x[2p], x[2p + 1]) rotated by the angle whose cosine and sine are cosines[p] and sines[p].
__global__ void rotate_kernel(const float* x, const float* cosines, const float* sines, float* y, int pairs) {
    const int element = blockIdx.x * blockDim.x + threadIdx.x;
    const int pair = element / 2;
    if (pair < pairs) {
        if (element % 2 == 0) {
            const float cosine = cosines[pair];
            const float sine = sines[pair];
            y[element] = x[element] * cosine - x[element + 1] * sine;
        } else {
            const float cosine = cosines[pair];
            const float sine = sines[pair];
            y[element] = x[element - 1] * sine + x[element] * cosine;
        }
    }
}

void rotate(const float* x, const float* cosines, const float* sines, float* y, int pairs) {
    const int blocks = (2 * pairs + THREADS - 1) / THREADS;
    rotate_kernel<<<blocks, THREADS>>>(x, cosines, sines, y, pairs);
}
