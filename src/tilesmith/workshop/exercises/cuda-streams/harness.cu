#include LEARNERS_FILE

#include "harness.h"

void try_size(int elements) {
    const auto values = numbers(elements);
    float *x = nullptr, *y = nullptr;
    cudaMallocHost(&x, elements * sizeof(float));
    cudaMallocHost(&y, elements * sizeof(float));
    std::copy(values.begin(), values.end(), x);
    std::fill(y, y + elements, NAN);
    ALIVE(+1);
    const cudaError_t error = silu_on_gpu(x, y, elements);
    ALIVE(-1);
    char tried[64];
    std::snprintf(tried, sizeof tried, "elements = %d", elements);
    if (error != cudaSuccess) {
        std::printf("The function returns the error \"%s\", but cudaSuccess is wanted (tried with %s).\n", cudaGetErrorString(error), tried);
        std::exit(WRONG);
    }
    std::vector<double> wanted;
    for (double value : values) wanted.push_back(value / (1.0 + std::exp(-value)));
    expect(tried, std::vector<float>(y, y + elements), wanted);
    cudaFreeHost(x);
    cudaFreeHost(y);
}

#ifdef LIMIT_MEMORY
// A GPU on which only the first chunk fits.
void try_without_memory() {
    float *x = nullptr, *y = nullptr;
    cudaMallocHost(&x, 512 * sizeof(float));
    cudaMallocHost(&y, 512 * sizeof(float));
    std::fill(x, x + 512, 1.0f);
    const size_t before = tilesmith::device_memory.size();
    LIMIT_MEMORY(128 * sizeof(float));
    ALIVE(+1);
    const cudaError_t error = silu_on_gpu(x, y, 512);
    ALIVE(-1);
    LIMIT_MEMORY(SIZE_MAX);
    cudaGetLastError();
    if (error == cudaSuccess && tilesmith::failed_allocations)
        std::printf("The function returns cudaSuccess, although cudaMalloc failed: the GPU had memory for one chunk only. "
                    "Keep the error that each call returns.\n");
    else if (tilesmith::device_memory.size() != before)
        std::printf("After a failed cudaMalloc, the memory that was allocated before is not freed.\n");
    else if (!tilesmith::streams.empty())
        std::printf("After a failed cudaMalloc, a stream is not destroyed.\n");
    else
        return cudaFreeHost(x), void(cudaFreeHost(y));
    std::exit(WRONG);
}
#endif

int main() {
    for (int elements : {512, 383, 1}) try_size(elements);
#ifdef LIMIT_MEMORY
    try_without_memory();
#endif
}
