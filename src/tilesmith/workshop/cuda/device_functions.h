// The functions of CUDA that a kernel calls. Part of cuda_runtime.h, which includes this file.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
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

// The other atomics, as CUDA has them. Each returns the value before.
template <typename Number, typename Change> Number tilesmith_atomic(Number* place, Change change) {
    tilesmith::counts.atomics.fetch_add(1, std::memory_order_relaxed);
    std::atomic_ref shared(*place);
    Number before = shared.load(std::memory_order_relaxed);
    while (!shared.compare_exchange_weak(before, change(before), std::memory_order_relaxed)) {}
    return before;
}
template <typename Number> Number atomicSub(Number* place, std::common_type_t<Number> value) {
    return tilesmith_atomic(place, [=](Number before) { return before - value; });
}
template <typename Number> Number atomicMax(Number* place, std::common_type_t<Number> value) {
    static_assert(std::is_integral_v<Number>, "CUDA has atomicMax for whole numbers only");
    return tilesmith_atomic(place, [=](Number before) { return max(before, value); });
}
template <typename Number> Number atomicMin(Number* place, std::common_type_t<Number> value) {
    static_assert(std::is_integral_v<Number>, "CUDA has atomicMin for whole numbers only");
    return tilesmith_atomic(place, [=](Number before) { return min(before, value); });
}
template <typename Number> Number atomicExch(Number* place, std::common_type_t<Number> value) {
    return tilesmith_atomic(place, [=](Number) { return value; });
}
template <typename Number>
Number atomicCAS(Number* place, std::common_type_t<Number> old, std::common_type_t<Number> value) {
    return tilesmith_atomic(place, [=](Number before) { return before == old ? value : before; });
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
template <typename Number> Number __ldg(const Number* place) { return *place; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __logf(float x) { return std::log(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __saturatef(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
