#include <cuda_runtime.h>

const int THREADS = 64;

// y = x with each pair (x[2p], x[2p + 1]) rotated by the angle whose cosine and sine are cosines[p] and sines[p].
__global__ void rotate_kernel(const float* x, const float* cosines, const float* sines, float* y, int pairs) {
    const int pair = blockIdx.x * blockDim.x + threadIdx.x;
    if (pair < pairs) {
        const float2 value = reinterpret_cast<const float2*>(x)[pair];
        const float cosine = cosines[pair];
        const float sine = sines[pair];
        const float2 turned = make_float2(value.x * cosine - value.y * sine, value.x * sine + value.y * cosine);
        reinterpret_cast<float2*>(y)[pair] = turned;
    }
}

void rotate(const float* x, const float* cosines, const float* sines, float* y, int pairs) {
    const int blocks = (pairs + THREADS - 1) / THREADS;
    rotate_kernel<<<blocks, THREADS>>>(x, cosines, sines, y, pairs);
}
