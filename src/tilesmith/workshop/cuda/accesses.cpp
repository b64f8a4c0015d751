// Counts the memory accesses of a kernel per warp, as a GPU would: sectors of global memory, wavefronts of shared memory.
// Finds data races between the blocks of a launch. Inside a block, the thread sanitizer finds them.
//
// The compiler instruments the learner's program for the thread sanitizer, but links this file instead of the sanitizer.
// Before every access, the program calls one of the functions at the end of this file. The file itself is not
// instrumented, or it would count itself.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "accesses.h"

// The linker defines the bounds of a section that is not empty.
extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));

namespace {

const unsigned WARP = 32, SECTOR_BYTES = 32, BANKS = 32, BANK_BYTES = 4;

using Address = std::uintptr_t;

enum Kind { LOAD, STORE, ATOMIC };

struct Touch {
    Address instruction, address;
    size_t bytes;
    Kind kind;
    bool is_shared;
};

// One instruction of the program: the lanes that took part in its requests, what these moved, and the least possible.
struct Instruction {
    bool is_store = false, is_shared = false;
    long requests = 0, lanes = 0, moved = 0, least = 0;
};

struct Request {
    Touch touch;
    std::set<Address> words;
    long lanes = 0;
};

std::mutex mutex;
std::map<Address, size_t> allocations;
std::map<std::tuple<unsigned, Address, unsigned>, Request> requests;  // warp, instruction, number of earlier runs
std::map<Address, Instruction> instructions;
bool finished = false;
thread_local std::vector<Touch>* touches = nullptr;

// The first load, store and atomic of a launch to one byte of global memory. Blocks run in turn, so the first is enough:
// if another block than the current one made a later access, it made the first one too.
struct Use {
    unsigned block;
    Address instruction;
};
using Users = std::array<std::optional<Use>, 3>;  // by kind
struct Race {
    Address instruction;  // a plain access; a plain store if one of the two is
    unsigned first, second;
};
std::unordered_map<Address, Users> users;
std::optional<Race> race;
unsigned block = 0;

bool is_shared(Address address) {
    return address >= reinterpret_cast<Address>(__start_shared_memory) &&
           address < reinterpret_cast<Address>(__stop_shared_memory);
}

bool is_global(Address address) {
    auto after = allocations.upper_bound(address);
    return after != allocations.begin() && address < (--after)->first + after->second;
}

void note(const void* pointer, size_t bytes, Kind kind, void* instruction) {
    const auto address = reinterpret_cast<Address>(pointer);
    if (!touches || !(is_shared(address) || is_global(address))) return;
    touches->push_back({reinterpret_cast<Address>(instruction), address, bytes, kind, is_shared(address)});
}

void look_for_race(const Touch& touch, Users& byte) {
    const auto meets = [&](Kind kind, bool is_others_fault) {
        const auto& other = byte[kind];
        if (race || !other || other->block == block) return;
        race = {is_others_fault ? other->instruction : touch.instruction, other->block, block};
    };
    meets(STORE, touch.kind != STORE);
    if (touch.kind != LOAD) meets(LOAD, touch.kind == ATOMIC);
    if (touch.kind != ATOMIC) meets(ATOMIC, false);
    if (!byte[touch.kind]) byte[touch.kind] = {block, touch.instruction};
}

// Distinct words in one bank take one wavefront each. A sector moves as a whole.
void settle(const Request& request) {
    auto& total = instructions[request.touch.instruction];
    total.is_store = request.touch.kind == STORE;
    total.is_shared = request.touch.is_shared;
    ++total.requests;
    total.lanes += request.lanes;
    const long words = static_cast<long>(request.words.size());
    if (total.is_shared) {
        std::map<Address, long> wanted;
        long wavefronts = 0;
        for (const auto word : request.words) wavefronts = std::max(wavefronts, ++wanted[word % BANKS]);
        total.moved += wavefronts;
        total.least += (words + BANKS - 1) / BANKS;
    } else {
        std::set<Address> sectors;
        for (const auto word : request.words) sectors.insert(word * BANK_BYTES / SECTOR_BYTES);
        total.moved += static_cast<long>(sectors.size());
        total.least += (words * BANK_BYTES + SECTOR_BYTES - 1) / SECTOR_BYTES;
    }
}

struct Report {
    ~Report() {
        for (const auto& [address, total] : instructions)
            std::printf("access 0x%lx %s %s requests=%ld lanes=%ld moved=%ld least=%ld\n", static_cast<unsigned long>(address),
                        total.is_store ? "store" : "load", total.is_shared ? "shared" : "global", total.requests,
                        total.lanes, total.moved, total.least);
        if (race)
            std::printf("race 0x%lx blocks=%u,%u\n", static_cast<unsigned long>(race->instruction), race->first, race->second);
    }
} report;

}  // namespace

namespace tilesmith {

void allocated(void* pointer, size_t bytes) { allocations[reinterpret_cast<Address>(pointer)] = bytes; }
void freed(void* pointer) { allocations.erase(reinterpret_cast<Address>(pointer)); }
void thread_begins() { touches = new std::vector<Touch>; }

void thread_ends(unsigned thread) {
    std::map<Address, unsigned> times;
    const std::lock_guard lock(mutex);
    for (const auto& touch : *touches) {
        if (!touch.is_shared && !race)
            for (size_t byte = 0; byte < touch.bytes; ++byte) look_for_race(touch, users[touch.address + byte]);
        if (finished || touch.kind == ATOMIC) continue;
        auto& request = requests[{thread / WARP, touch.instruction, times[touch.instruction]++}];
        request.touch = touch;
        ++request.lanes;
        for (size_t byte = 0; byte < touch.bytes; byte += BANK_BYTES)
            request.words.insert((touch.address + byte) / BANK_BYTES);
    }
    delete touches;
    touches = nullptr;
}

void block_ends() {
    for (const auto& [key, request] : requests) settle(request);
    requests.clear();
    ++block;
}

void launch_ends() {
    users.clear();
    block = 0;
}

void case_ends() { finished = true; }

}  // namespace tilesmith

// The compiler inserts a call of these functions before every access, and calls those below instead of an atomic.
#define NOTE(kind) note(address, bytes, kind, __builtin_return_address(0))
#define NOTED(size)                                                                                             \
    extern "C" void __tsan_read##size(void* address) { constexpr int bytes = size; NOTE(LOAD); }                \
    extern "C" void __tsan_write##size(void* address) { constexpr int bytes = size; NOTE(STORE); }              \
    extern "C" void __tsan_unaligned_read##size(void* address) { constexpr int bytes = size; NOTE(LOAD); }      \
    extern "C" void __tsan_unaligned_write##size(void* address) { constexpr int bytes = size; NOTE(STORE); }
NOTED(1)
NOTED(2)
NOTED(4)
NOTED(8)
NOTED(16)
extern "C" void __tsan_read_range(void* address, size_t bytes) { NOTE(LOAD); }
extern "C" void __tsan_write_range(void* address, size_t bytes) { NOTE(STORE); }

#define ATOMIC_UPDATE(bits, Number, name, builtin)                                           \
    extern "C" Number __tsan_atomic##bits##_##name(Number* address, Number value, int) {     \
        constexpr int bytes = sizeof(Number);                                                \
        NOTE(ATOMIC);                                                                        \
        return builtin(address, value, __ATOMIC_SEQ_CST);                                    \
    }
#define ATOMIC_EXCHANGE(bits, Number, strength, is_weak)                                                              \
    extern "C" int __tsan_atomic##bits##_compare_exchange_##strength(Number* address, Number* old, Number value, int, \
                                                                     int) {                                           \
        constexpr int bytes = sizeof(Number);                                                                         \
        NOTE(ATOMIC);                                                                                                 \
        return __atomic_compare_exchange_n(address, old, value, is_weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);         \
    }
#define ATOMIC(bits, Number)                                                                  \
    extern "C" Number __tsan_atomic##bits##_load(const Number* address, int) {                \
        constexpr int bytes = sizeof(Number);                                                 \
        NOTE(ATOMIC);                                                                         \
        return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                    \
    }                                                                                         \
    extern "C" void __tsan_atomic##bits##_store(Number* address, Number value, int) {         \
        constexpr int bytes = sizeof(Number);                                                 \
        NOTE(ATOMIC);                                                                         \
        __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                   \
    }                                                                                         \
    ATOMIC_UPDATE(bits, Number, exchange, __atomic_exchange_n)                                \
    ATOMIC_UPDATE(bits, Number, fetch_add, __atomic_fetch_add)                                \
    ATOMIC_UPDATE(bits, Number, fetch_sub, __atomic_fetch_sub)                                \
    ATOMIC_UPDATE(bits, Number, fetch_and, __atomic_fetch_and)                                \
    ATOMIC_UPDATE(bits, Number, fetch_or, __atomic_fetch_or)                                  \
    ATOMIC_UPDATE(bits, Number, fetch_xor, __atomic_fetch_xor)                                \
    ATOMIC_EXCHANGE(bits, Number, strong, false)                                              \
    ATOMIC_EXCHANGE(bits, Number, weak, true)
ATOMIC(8, std::uint8_t)
ATOMIC(16, std::uint16_t)
ATOMIC(32, std::uint32_t)
ATOMIC(64, std::uint64_t)
extern "C" void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
extern "C" void __tsan_atomic_signal_fence(int) {}

extern "C" void* __tsan_memcpy(void* to, const void* from, size_t bytes) { return std::memcpy(to, from, bytes); }
extern "C" void* __tsan_memmove(void* to, const void* from, size_t bytes) { return std::memmove(to, from, bytes); }
extern "C" void* __tsan_memset(void* to, int value, size_t bytes) { return std::memset(to, value, bytes); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_read(void**) {}
extern "C" void __tsan_vptr_update(void**, void*) {}
