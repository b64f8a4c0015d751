#include <cuda_runtime.h>

// Copies the first column of a row-major matrix in host memory to `column` in GPU memory.
void copy_first_column(const float* matrix, float* column, int rows, int columns) {
    cudaMemcpy(column, matrix, rows * sizeof(float), cudaMemcpyHostToDevice);
}
