// fails: goals (copied_bytes is 8088)
#include <cuda_runtime.h>

__global__ void first_column_kernel(const float* matrix, float* column, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        column[row] = matrix[row * columns];
    }
}

// Copies the first column of a row-major matrix in host memory to `column` in GPU memory.
void copy_first_column(const float* matrix, float* column, int rows, int columns) {
    float* copied;
    cudaMalloc(&copied, rows * columns * sizeof(float));
    cudaMemcpy(copied, matrix, rows * columns * sizeof(float), cudaMemcpyHostToDevice);
    first_column_kernel<<<(rows + 63) / 64, 64>>>(copied, column, rows, columns);
    cudaFree(copied);
}
