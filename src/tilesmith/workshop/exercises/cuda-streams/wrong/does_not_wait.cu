// fails: goals (implicit_waits)
#include <cuda_runtime.h>

const int THREADS = 96;
const int CHUNK = 128;
const int STREAMS = 2;

__device__ float silu(float x) { return x / (1.0f + expf(-x)); }

__global__ void silu_kernel(const float* x, float* y, int elements) {
    const int element = blockIdx.x * blockDim.x + threadIdx.x;
    if (element < elements) {
        y[element] = silu(x[element]);
    }
}

// Computes y = silu(x) on the GPU, chunk by chunk; x and y are in pinned host memory.
// Returns the first error. Memory and streams are freed in every case.
cudaError_t silu_on_gpu(const float* x, float* y, int elements) {
    float* chunks[STREAMS] = {};
    cudaStream_t streams[STREAMS] = {};
    cudaError_t error = cudaSuccess;
    for (int turn = 0; turn < STREAMS && error == cudaSuccess; ++turn) {
        error = cudaStreamCreate(&streams[turn]);
        if (error == cudaSuccess) {
            error = cudaMalloc(&chunks[turn], CHUNK * sizeof(float));
        }
    }
    for (int start = 0, turn = 0; start < elements && error == cudaSuccess; start += CHUNK, turn = (turn + 1) % STREAMS) {
        const int count = elements - start < CHUNK ? elements - start : CHUNK;
        const int blocks = (count + THREADS - 1) / THREADS;
        cudaMemcpyAsync(chunks[turn], x + start, count * sizeof(float), cudaMemcpyHostToDevice, streams[turn]);
        silu_kernel<<<blocks, THREADS, 0, streams[turn]>>>(chunks[turn], chunks[turn], count);
        cudaMemcpyAsync(y + start, chunks[turn], count * sizeof(float), cudaMemcpyDeviceToHost, streams[turn]);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess) {
        error = cudaGetLastError();
    }
    for (int turn = 0; turn < STREAMS; ++turn) {
        cudaFree(chunks[turn]);
        if (streams[turn]) {
            cudaStreamDestroy(streams[turn]);
        }
    }
    return error;
}
