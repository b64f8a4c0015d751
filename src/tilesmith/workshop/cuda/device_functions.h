// The functions of CUDA that a kernel calls. Part of cuda_runtime.h, which includes this file.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>

using std::max;
using std::min;
const int warpSize = 32;

// An atomic orders nothing but itself: a stronger memory order would hide races from the sanitizer.
// The place alone decides the type, as in CUDA: an int is added to floats as a float.
template <typename Number> Number atomicAdd(Number* place, std::common_type_t<Number> value) {
    tilesmith::counts.atomics.fetch_add(1, std::memory_order_relaxed);
    const Number before = std::atomic_ref(*place).fetch_add(value, std::memory_order_relaxed);
    if (before != before) tilesmith::counts.added_to_unwritten = true;  // NaN
    return before;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
template <typename Number> Number __ldg(const Number* place) { return *place; }
