// The 32 threads of a warp, and what they exchange without shared memory. Part of cuda_runtime.h, which includes this file.
#pragma once

#include <sched.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace tilesmith {

// The mailboxes of the lanes that a mask names. Each lane has two, which it uses in turn: a lane that puts its second value
// has seen the first of all others, so all others have read its value before that. A mailbox holds 32 bits and the number
// of the exchange. All accesses are relaxed: a shuffle orders no memory, and an order would hide races from the sanitizer.
struct Mail {
    std::atomic<uint32_t> mask = 0;
    std::atomic<uint64_t> boxes[2][2][32] = {};
    std::atomic<uint32_t> order = 0;
};
struct Warp {
    static constexpr int MOST_MASKS = 8;
    Mail mail[MOST_MASKS];
    std::atomic<uint32_t> left = 0;
    uint32_t lanes = 0;

    int place_of(uint32_t mask) {
        for (int place = 0; place < MOST_MASKS; ++place) {
            uint32_t found = 0;
            if (mail[place].mask.compare_exchange_strong(found, mask, std::memory_order_relaxed) || found == mask) return place;
        }
        std::fprintf(stderr, "a warp uses more than %d masks\n", MOST_MASKS);
        std::_Exit(1);
    }
};
inline thread_local Warp* warp = nullptr;
inline thread_local int lane = 0;
inline thread_local uint32_t exchanges[Warp::MOST_MASKS] = {};

inline uint32_t exchanged_word(unsigned mask, int place, int word, uint32_t bits, int from, const char* file, int line) {
    const uint32_t round = exchanges[place];
    auto& boxes = warp->mail[place].boxes[round % 2][word];
    boxes[lane].store(uint64_t{round} << 32 | bits, std::memory_order_relaxed);
    for (int other = 0; other < 32; ++other)
        while (mask & warp->lanes & 1u << other && boxes[other].load(std::memory_order_relaxed) >> 32 != round) {
            if (warp->left.load(std::memory_order_relaxed) & 1u << other) {
                std::fprintf(stderr, "divergent shuffle at %s:%d\n", file, line);
                std::_Exit(1);
            }
            sched_yield();
        }
    const bool answers = mask & warp->lanes & 1u << from;
    return answers ? static_cast<uint32_t>(boxes[from].load(std::memory_order_relaxed)) : 0x7e7e7e7eu;
}

template <typename Number> Number exchanged(unsigned mask, Number value, int from, const char* file, int line) {
    static_assert(std::is_trivially_copyable_v<Number> && sizeof(Number) <= 8);
    uint32_t words[2] = {};
    std::memcpy(words, &value, sizeof value);
    const int place = warp->place_of(mask);
    ++exchanges[place];
    for (int word = 0; word < 2; ++word) words[word] = exchanged_word(mask, place, word, words[word], from, file, line);
    std::memcpy(&value, words, sizeof value);
    return value;
}

// A lane that asks beyond its group of `width` lanes gets its own value.
template <typename Number>
Number shuffled(unsigned mask, Number value, int from, int width, const char* file, int line) {
    const int first = lane / width * width;
    return exchanged(mask, value, from >= first && from < first + width ? from : lane, file, line);
}
inline uint32_t ballot(unsigned mask, bool value, const char* file, int line) {
    uint32_t found = 0;
    for (int from = 0; from < 32; ++from)
        found |= uint32_t{exchanged(mask, int{value}, from, file, line) == 1} << from;
    return found & mask;
}
// A barrier for the lanes of a mask. Unlike a shuffle, it orders memory.
inline void wait_for_warp(unsigned mask, const char* file, int line) {
    auto& order = warp->mail[warp->place_of(mask)].order;
    order.fetch_add(1, std::memory_order_acq_rel);
    exchanged(mask, 0, lane, file, line);
    order.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace tilesmith

#define TILESMITH_SHUFFLE(name, source)                                                                         \
    template <typename Number>                                                                                  \
    Number name(const char* file, int line, unsigned mask, Number value, int by, int width = 32) {              \
        return tilesmith::shuffled(mask, value, source, width, file, line);                                     \
    }
TILESMITH_SHUFFLE(tilesmith_shfl, tilesmith::lane / width * width + by % width)
TILESMITH_SHUFFLE(tilesmith_shfl_down, tilesmith::lane + by)
TILESMITH_SHUFFLE(tilesmith_shfl_up, tilesmith::lane - by)
TILESMITH_SHUFFLE(tilesmith_shfl_xor, tilesmith::lane ^ by)
#define __shfl_sync(...) tilesmith_shfl(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) tilesmith_shfl_down(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) tilesmith_shfl_up(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) tilesmith_shfl_xor(__FILE__, __LINE__, __VA_ARGS__)
#define __ballot_sync(mask, value) tilesmith::ballot(mask, value, __FILE__, __LINE__)
#define __any_sync(mask, value) (tilesmith::ballot(mask, value, __FILE__, __LINE__) != 0)
#define __all_sync(mask, value) (tilesmith::ballot(mask, !(value), __FILE__, __LINE__) == 0)
#define __syncwarp(...) tilesmith::wait_for_warp(0u __VA_OPT__(+) __VA_ARGS__ ?: ~0u, __FILE__, __LINE__)
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return bits ? std::countr_zero(static_cast<unsigned>(bits)) + 1 : 0; }
