// fails: goals (copies is 58)
#include <cuda_runtime.h>

// Copies the first column of a row-major matrix in host memory to `column` in GPU memory.
void copy_first_column(const float* matrix, float* column, int rows, int columns) {
    for (int row = 0; row < rows; ++row) {
        cudaMemcpy(column + row, matrix + row * columns, sizeof(float), cudaMemcpyHostToDevice);
    }
}
