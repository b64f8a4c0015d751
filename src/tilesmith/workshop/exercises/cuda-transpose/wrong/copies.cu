// fails: runs (outside of what was allocated)
#include <cuda_runtime.h>

const int SIDE = 16;

__global__ void transpose_kernel(const float* x, float* out, int rows, int columns) {
    const int column = blockIdx.x * SIDE + threadIdx.x;
    const int row = blockIdx.y * SIDE + threadIdx.y;
    if (row < rows && column < columns) {
        out[column * columns + row] = x[row * columns + column];
    }
}

// Computes out[column, row] = x[row, column]; both are in GPU memory.
void transpose(const float* x, float* out, int rows, int columns) {
    const dim3 threads(SIDE, SIDE);
    const dim3 blocks((columns + SIDE - 1) / SIDE, (rows + SIDE - 1) / SIDE);
    transpose_kernel<<<blocks, threads>>>(x, out, rows, columns);
}
