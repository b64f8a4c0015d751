// Counts the memory accesses of a kernel per warp, as a GPU would: sectors of global memory, wavefronts of shared memory.
//
// The compiler instruments the learner's program for the kernel address sanitizer. Before every access, the program calls
// one of the functions at the end of this file. This file itself is not instrumented, or it would count itself.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "accesses.h"

// The linker defines the bounds of a section that is not empty.
extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));

namespace {

const unsigned WARP = 32, SECTOR_BYTES = 32, BANKS = 32, BANK_BYTES = 4;

using Address = std::uintptr_t;

struct Touch {
    Address instruction, address;
    size_t bytes;
    bool is_store, is_shared;
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

bool is_shared(Address address) {
    return address >= reinterpret_cast<Address>(__start_shared_memory) &&
           address < reinterpret_cast<Address>(__stop_shared_memory);
}

bool is_global(Address address) {
    auto after = allocations.upper_bound(address);
    return after != allocations.begin() && address < (--after)->first + after->second;
}

void note(const void* pointer, size_t bytes, bool is_store, void* instruction) {
    const auto address = reinterpret_cast<Address>(pointer);
    if (!touches || finished || !(is_shared(address) || is_global(address))) return;
    touches->push_back({reinterpret_cast<Address>(instruction), address, bytes, is_store, is_shared(address)});
}

// Distinct words in one bank take one wavefront each. A sector moves as a whole.
void settle(const Request& request) {
    auto& total = instructions[request.touch.instruction];
    total.is_store = request.touch.is_store;
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
}

void case_ends() { finished = true; }

}  // namespace tilesmith

// The compiler inserts a call of these functions before every access.
#define NOTED(bytes)                                                     \
    extern "C" void __asan_load##bytes##_noabort(void* address) {        \
        note(address, bytes, false, __builtin_return_address(0));        \
    }                                                                    \
    extern "C" void __asan_store##bytes##_noabort(void* address) {       \
        note(address, bytes, true, __builtin_return_address(0));         \
    }
NOTED(1)
NOTED(2)
NOTED(4)
NOTED(8)
NOTED(16)
extern "C" void __asan_loadN_noabort(void* address, size_t bytes) {
    note(address, bytes, false, __builtin_return_address(0));
}
extern "C" void __asan_storeN_noabort(void* address, size_t bytes) {
    note(address, bytes, true, __builtin_return_address(0));
}
extern "C" void __asan_handle_no_return() {}
extern "C" void __asan_before_dynamic_init(const char*) {}
extern "C" void __asan_after_dynamic_init() {}
