// fails: goals (strided_copies is 0)
#include <vector>

#include <cuda_runtime.h>

// Copies the first column of a row-major matrix in host memory to `column` in GPU memory.
void copy_first_column(const float* matrix, float* column, int rows, int columns) {
    std::vector<float> gathered(rows);
    for (int row = 0; row < rows; ++row) {
        gathered[row] = matrix[row * columns];
    }
    cudaMemcpy(column, gathered.data(), rows * sizeof(float), cudaMemcpyHostToDevice);
}
