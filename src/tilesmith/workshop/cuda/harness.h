// The code that all harnesses share: GPU buffers, input numbers, and a comparison that names the first wrong element.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#ifndef UNCOUNTED  // with CUDA's own header, nothing is counted
#define UNCOUNTED(copy) copy
#define CASE_ENDS()
#define ALIVE(change)
#define ADDED_TO_UNWRITTEN() false
#endif

const float UNWRITTEN = 1e36f;  // cuda_runtime.h fills new memory with larger numbers
const int WRONG = 3;  // the exit status for a wrong result, to tell it from a crash

// GPU memory, filled from a vector and copied back to a vector.
class Buffer {
  public:
    explicit Buffer(const std::vector<float>& values) : size_(values.size()) {
        ALIVE(+1);
        cudaMalloc(&pointer_, size_ * sizeof(float));
        UNCOUNTED(cudaMemcpy(pointer_, values.data(), size_ * sizeof(float), cudaMemcpyHostToDevice));
    }
    ~Buffer() {
        ALIVE(-1);
        cudaFree(pointer_);
    }
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

// An output before the call: NaN, which no right result contains.
inline std::vector<float> unwritten(size_t count) { return std::vector<float>(count, NAN); }

// On a GPU a kernel fails silently, so ask for errors.
inline void stop_at_errors() {
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s", cudaGetErrorString(error));
    std::exit(1);
}

inline void expect(const char* tried, const std::vector<float>& found, const std::vector<double>& wanted) {
    CASE_ENDS();
    stop_at_errors();
    for (size_t place = 0; place < wanted.size(); ++place) {
        const double error = std::fabs(found[place] - wanted[place]);
        if (error <= 1e-4 * (1.0 + std::fabs(wanted[place]))) continue;
        if (std::isnan(found[place]) && ADDED_TO_UNWRITTEN())
            std::printf("Element %zu is NaN: atomicAdd added to memory that nobody had written. Set it to 0 before the "
                        "launch, with cudaMemset (tried with %s).\n",
                        place, tried);
        else if (std::isnan(found[place]))
            std::printf("Element %zu of the result was not written by any thread (tried with %s).\n", place, tried);
        else if (std::fabs(found[place]) > UNWRITTEN)
            std::printf("Element %zu is %g, but must be %g: it comes from memory that no thread has written; shared "
                        "memory is new in every block (tried with %s).\n",
                        place, found[place], wanted[place], tried);
        else
            std::printf("Element %zu is %g, but must be %g (tried with %s).\n", place, found[place], wanted[place], tried);
        std::exit(WRONG);
    }
}

// The sizes to time, from the command line. Empty: the program runs its cases.
inline std::vector<int> sizes_to_time(int words, char** word) {
    std::vector<int> sizes;
    for (int number = 1; number < words; ++number) sizes.push_back(std::atoi(word[number]));
    return sizes;
}

// Prints the time of a call on the GPU: the median of 25. A memset before each call clears the cache, and runs long enough
// to hide the launch of the call.
template <typename Call> void print_time(Call call) {
    const size_t more_than_the_cache = size_t{256} << 20;
    char* scratch = nullptr;
    cudaMalloc(&scratch, more_than_the_cache);
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    std::vector<float> samples;
    for (int sample = 0; sample < 25; ++sample) {
        cudaMemset(scratch, 0, more_than_the_cache);
        cudaEventRecord(start);
        call();
        cudaEventRecord(stop);
        cudaEventSynchronize(stop);
        float milliseconds = 0.0f;
        cudaEventElapsedTime(&milliseconds, start, stop);
        samples.push_back(milliseconds);
    }
    stop_at_errors();
    cudaFree(scratch);
    std::sort(samples.begin(), samples.end());
    std::printf("milliseconds %.6f\n", samples[samples.size() / 2]);
}
