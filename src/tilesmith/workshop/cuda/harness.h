// What the exercises' harnesses share: buffers on the GPU, numbers to try, and a comparison that says where it fails.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#ifndef UNCOUNTED  // CUDA's own header counts nothing
#define UNCOUNTED(copy) copy
#define CASE_ENDS()
#endif

const int WRONG = 3;  // the exit status by which the check knows a wrong result from a crash

// Memory on the GPU, with a copy of what is in it.
class Buffer {
  public:
    explicit Buffer(const std::vector<float>& values) : size_(values.size()) {
        cudaMalloc(&pointer_, size_ * sizeof(float));
        UNCOUNTED(cudaMemcpy(pointer_, values.data(), size_ * sizeof(float), cudaMemcpyHostToDevice));
    }
    ~Buffer() { cudaFree(pointer_); }
    Buffer(const Buffer&) = delete;

    operator float*() { return pointer_; }
    std::vector<float> values() const {
        std::vector<float> copy(size_);
        UNCOUNTED(cudaMemcpy(copy.data(), pointer_, size_ * sizeof(float), cudaMemcpyDeviceToHost));
        return copy;
    }

  private:
    float* pointer_ = nullptr;
    size_t size_;
};

// Numbers between -2 and 2, the same in every run.
inline std::vector<float> numbers(size_t count, unsigned seed = 1) {
    std::vector<float> values(count);
    for (auto& value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(seed >> 8) / (1 << 22) - 2.0f;
    }
    return values;
}

// An output that nobody has written yet: a value that no result has.
inline std::vector<float> unwritten(size_t count) { return std::vector<float>(count, NAN); }

inline void expect(const char* tried, const std::vector<float>& found, const std::vector<double>& wanted) {
    CASE_ENDS();
    for (size_t place = 0; place < wanted.size(); ++place) {
        const double error = std::fabs(found[place] - wanted[place]);
        if (error <= 1e-4 * (1.0 + std::fabs(wanted[place]))) continue;
        if (std::isnan(found[place]))
            std::printf("Element %zu of the result was not written by any thread (tried with %s).\n", place, tried);
        else
            std::printf("Element %zu is %g, but must be %g (tried with %s).\n", place, found[place], wanted[place], tried);
        std::exit(WRONG);
    }
}
