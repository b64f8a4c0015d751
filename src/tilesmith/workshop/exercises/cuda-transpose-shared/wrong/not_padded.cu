// fails: goals (bank_conflicts is 992)
#include <cuda_runtime.h>

const int SIDE = 32;
const int ROWS_AT_ONCE = 8;

__global__ void transpose_kernel(const float* x, float* out, int rows, int columns) {
    __shared__ float tile[SIDE][SIDE];
    const int column = blockIdx.x * SIDE + threadIdx.x;
    for (int row = threadIdx.y; row < SIDE; row += ROWS_AT_ONCE) {
        const int x_row = blockIdx.y * SIDE + row;
        if (x_row < rows && column < columns) {
            tile[row][threadIdx.x] = x[x_row * columns + column];
        }
    }
    __syncthreads();
    const int out_column = blockIdx.y * SIDE + threadIdx.x;
    for (int row = threadIdx.y; row < SIDE; row += ROWS_AT_ONCE) {
        const int out_row = blockIdx.x * SIDE + row;
        if (out_row < columns && out_column < rows) {
            out[out_row * rows + out_column] = tile[threadIdx.x][row];
        }
    }
}

// Computes out[column, row] = x[row, column]; both are in GPU memory.
void transpose(const float* x, float* out, int rows, int columns) {
    const dim3 threads(SIDE, ROWS_AT_ONCE);
    const dim3 blocks((columns + SIDE - 1) / SIDE, (rows + SIDE - 1) / SIDE);
    transpose_kernel<<<blocks, threads>>>(x, out, rows, columns);
}
