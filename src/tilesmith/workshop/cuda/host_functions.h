// The functions of CUDA that the host calls: memory, copies, streams, events, errors. Part of cuda_runtime.h, which includes
// this file.
#pragma once

#include <time.h>

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9
};
using cudaStream_t = tilesmith::Stream*;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };

// For the harness: a GPU with little memory left.
#define LIMIT_MEMORY(bytes) tilesmith::memory_left = (bytes)
namespace tilesmith {
inline size_t memory_left = SIZE_MAX;
inline long failed_allocations = 0;
inline void forget(std::vector<Allocation>& allocations, const void* start) {
    std::erase_if(allocations, [=](const Allocation& one) { return one.start == start; });
}
inline cudaError_t failed(cudaError_t error) { return last_error = error, error; }
}  // namespace tilesmith

template <typename Element> cudaError_t cudaMalloc(Element** pointer, size_t bytes) {
    if (bytes > tilesmith::memory_left) return ++tilesmith::failed_allocations, tilesmith::failed(cudaErrorMemoryAllocation);
    if (tilesmith::memory_left != SIZE_MAX) tilesmith::memory_left -= bytes;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes)) return cudaErrorMemoryAllocation;  // CUDA's own alignment
    std::memset(memory, 0x7e, bytes);  // nobody has written it: large numbers, which a result shows
    tilesmith::allocated(memory, bytes);
    tilesmith::device_memory.push_back({memory, bytes});
    tilesmith::let_host_touch(false);
    *pointer = static_cast<Element*>(memory);
    return cudaSuccess;
}
inline cudaError_t cudaFree(void* pointer) {
    for (const auto* stream : tilesmith::streams) tilesmith::counts.implicit_waits += !stream->work.empty();
    tilesmith::finish_streams();
    if (!pointer) return cudaSuccess;
    tilesmith::freed(pointer);
    tilesmith::let_host_touch(true);
    tilesmith::forget(tilesmith::device_memory, pointer);
    std::free(pointer);
    tilesmith::let_host_touch(false);
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    tilesmith::finish_streams();
    const tilesmith::Touching touching;
    return std::memset(to, value, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr) {
    tilesmith::in_order(stream, [=] {
        const tilesmith::Touching touching;
        std::memset(to, value, bytes);
    });
    return cudaSuccess;
}
// Whether the kind of a copy says where its pointers point to. CUDA refuses the copy, or its result is undefined.
namespace tilesmith {
inline bool is_on_gpu(const void* place) {
    for (const auto& [start, bytes] : device_memory)
        if (place >= start && place < static_cast<const char*>(start) + bytes) return true;
    return false;
}
inline bool is_kind_of(void* to, const void* from, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return true;
    return is_on_gpu(to) == (kind != cudaMemcpyDeviceToHost) && is_on_gpu(from) == (kind != cudaMemcpyHostToDevice);
}
}  // namespace tilesmith

inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes && !tilesmith::is_kind_of(to, from, kind)) return tilesmith::failed(cudaErrorInvalidValue);
    tilesmith::finish_streams();
    const tilesmith::Touching touching;
    tilesmith::counts.copy(bytes);
    return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, cudaMemcpyKind kind) {
    if (width * height && !tilesmith::is_kind_of(to, from, kind)) return tilesmith::failed(cudaErrorInvalidValue);
    const tilesmith::Touching touching;
    tilesmith::counts.copy(width * height);
    tilesmith::counts.strided_copies += from_pitch != to_pitch;
    for (size_t row = 0; row < height; ++row)
        std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return cudaSuccess;
}

// Pinned host memory, which a GPU can copy while the host goes on.
namespace tilesmith {
inline std::vector<Allocation> pinned_memory;
inline bool is_pinned(const void* place) {
    for (const auto& [start, bytes] : pinned_memory)
        if (place >= start && place < static_cast<const char*>(start) + bytes) return true;
    return false;
}
}  // namespace tilesmith
template <typename Element> cudaError_t cudaMallocHost(Element** pointer, size_t bytes) {
    *pointer = static_cast<Element*>(std::malloc(bytes));
    return tilesmith::pinned_memory.push_back({*pointer, bytes}), cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* pointer) {
    tilesmith::finish_streams();
    tilesmith::forget(tilesmith::pinned_memory, pointer);
    return std::free(pointer), cudaSuccess;
}

inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    ++tilesmith::counts.streams;
    return tilesmith::streams.push_back(*stream = new tilesmith::Stream), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream ? stream->finish() : tilesmith::finish_streams(), cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream) return tilesmith::failed(cudaErrorInvalidValue);
    std::erase(tilesmith::streams, stream);
    return delete stream, cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr) {
    if (bytes && !tilesmith::is_kind_of(to, from, kind)) return tilesmith::failed(cudaErrorInvalidValue);
    tilesmith::counts.copy(bytes);
    tilesmith::counts.async_copies += stream != nullptr;
    if (kind != cudaMemcpyDeviceToDevice)
        tilesmith::counts.pageable_copies += !tilesmith::is_pinned(kind == cudaMemcpyHostToDevice ? from : to);
    tilesmith::in_order(stream, [=] {
        const tilesmith::Touching touching;
        std::memcpy(to, from, bytes);
    });
    return cudaSuccess;
}

// An event is the time at which its stream reaches it. Each recording is one of its own: who waits for an event waits for its
// last recording before the wait.
namespace tilesmith {
struct Recording {
    const Stream* stream;
    bool is_reached = false;
    timespec time = {};
};
struct Event {
    Recording* last = nullptr;
};
inline void reach(const Recording* recording) {
    if (!recording) return;
    for (auto* stream : streams)
        while (stream == recording->stream && !recording->is_reached && !stream->work.empty()) stream->finish_first();
}
}  // namespace tilesmith
using cudaEvent_t = tilesmith::Event*;
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new tilesmith::Event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) {
    auto* recording = event->last = new tilesmith::Recording{stream};
    tilesmith::in_order(stream, [=] {
        clock_gettime(CLOCK_MONOTONIC, &recording->time);
        recording->is_reached = true;
    });
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) { return tilesmith::reach(event->last), cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0) {
    return tilesmith::in_order(stream, [last = event->last] { tilesmith::reach(last); }), cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    if (!start->last || !stop->last) return tilesmith::failed(cudaErrorInvalidValue);
    const timespec &from = start->last->time, &to = stop->last->time;
    return *milliseconds = (to.tv_sec - from.tv_sec) * 1e3f + (to.tv_nsec - from.tv_nsec) * 1e-6f, cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }

// A GPU as most courses assume it; a program that asks gets the limits that this header keeps.
struct cudaDeviceProp {
    char name[256] = "no GPU: threads of this CPU";
    int multiProcessorCount = 4, maxThreadsPerBlock = 1024, warpSize = 32, major = 9, minor = 0;
    size_t sharedMemPerBlock = 48 << 10, totalGlobalMem = size_t{1} << 30;
};
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) { return *found = {}, cudaSuccess; }

inline cudaError_t cudaDeviceSynchronize() { return tilesmith::finish_streams(), cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return static_cast<cudaError_t>(tilesmith::last_error); }
inline cudaError_t cudaGetLastError() {
    const cudaError_t error = cudaPeekAtLastError();
    return tilesmith::last_error = 0, error;
}
inline const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        default: return "invalid configuration argument";
    }
}
