#include <cuda_runtime.h>

const int SIDE = 16;

__global__ void transpose_kernel(const float* x, float* out, int rows, int columns) {
    __shared__ float tile[SIDE][SIDE + 1];
    const int column = blockIdx.x * SIDE + threadIdx.x;
    const int row = blockIdx.y * SIDE + threadIdx.y;
    if (row < rows && column < columns) {
        tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
    }
    __syncthreads();
    const int out_column = blockIdx.y * SIDE + threadIdx.x;
    const int out_row = blockIdx.x * SIDE + threadIdx.y;
    if (out_row < columns && out_column < rows) {
        out[out_row * rows + out_column] = tile[threadIdx.x][threadIdx.y];
    }
}

// out[column, row] = x[row, column]; both lie in GPU memory.
void transpose(const float* x, float* out, int rows, int columns) {
    const dim3 threads(SIDE, SIDE);
    const dim3 blocks((columns + SIDE - 1) / SIDE, (rows + SIDE - 1) / SIDE);
    transpose_kernel<<<blocks, threads>>>(x, out, rows, columns);
}
