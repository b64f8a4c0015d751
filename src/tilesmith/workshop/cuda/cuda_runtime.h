// CUDA's model on ordinary C++20 threads: enough to run the exercises' kernels without a GPU.
//
// The blocks of a launch run one after another. The threads of a block run at the same time, each as a system thread. So a
// `__shared__` variable is a static variable, and the sanitizers find errors that a GPU hides: accesses outside of what
// was allocated, and two threads that access the same address without a __syncthreads() between them.
// A launch `kernel<<<grid, block>>>(…)` is not C++; the check rewrites it to `launch(kernel, grid, block)(…)`, and
// `extern __shared__ float tile[];` to a pointer to the launch's dynamic shared memory.
//
// Every check of a file parses this header three times, so it does without <thread>, <functional>, <map> and <string>.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "accesses.h"
#include "warps.h"

#ifdef ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

#define __global__
#define __device__
#define __host__
#define __restrict__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __constant__ static
// The address sanitizer puts no guard around variables of a named section, so its build has none.
#ifdef ADDRESS_SANITIZER
#define __shared__ static
#else
#define __shared__ static __attribute__((section("shared_memory")))
extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));
#endif

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using uint = unsigned int;
inline thread_local dim3 threadIdx, blockIdx;
inline dim3 gridDim, blockDim;

namespace tilesmith {

struct Lock {
    explicit Lock(pthread_mutex_t& mutex) : mutex(mutex) { pthread_mutex_lock(&mutex); }
    ~Lock() { pthread_mutex_unlock(&mutex); }
    pthread_mutex_t& mutex;
};

// Calls `work(number)` in as many system threads, and waits for all of them.
template <typename Work> void run_in_threads(unsigned threads, const Work& work) {
    struct Thread {
        const Work* work;
        unsigned number;
        pthread_t id;
    };
    std::vector<Thread> running(threads);
    for (unsigned number = 0; number < threads; ++number) {
        running[number] = {&work, number, {}};
        const auto run = [](void* given) -> void* {
            const auto* mine = static_cast<const Thread*>(given);
            return (*mine->work)(mine->number), nullptr;
        };
        if (pthread_create(&running[number].id, nullptr, run, &running[number])) {
            std::fprintf(stderr, "this machine has no more threads\n");
            std::_Exit(1);
        }
    }
    for (const auto& thread : running) pthread_join(thread.id, nullptr);
}

// A barrier for the threads of a block. All of them must reach the same __syncthreads(), or the program ends.
//
// A woken thread does not lock the mutex again: the lock would order it after threads that have left in the meantime, and
// hide a race with them from the sanitizer.
class Barrier {
  public:
    explicit Barrier(unsigned threads) : threads_(threads) {}

    void wait(const char* file, int line) {
        unsigned round;
        {
            const Lock lock(mutex_);
            if (left_ || (arrived_ && line != line_)) stop(file, line);
            file_ = file;
            line_ = line;
            round = round_;
            if (++arrived_ == threads_) return release();
        }
        round_.wait(round);
    }

    void leave() {
        const Lock lock(mutex_);
        if (arrived_) stop(file_, line_);
        ++left_;
    }

  private:
    [[noreturn]] static void stop(const char* file, int line) {
        std::fprintf(stderr, "divergent barrier at %s:%d\n", file, line);
        std::_Exit(1);
    }

    void release() {
        arrived_ = 0;
        ++round_;
        round_.notify_all();
    }

    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    const unsigned threads_;
    unsigned arrived_ = 0, left_ = 0;
    const char* file_ = "";
    int line_ = 0;
    std::atomic<unsigned> round_ = 0;
};

// The counts of the program, for goals, questions and the verdict; printed at its end. A program that ends inside the
// learner's function leaves buffers of the harness alive. `run` is a number that only the check knows.
struct Counts {
    long launches = 0, blocks = 0, threads = 0, copies = 0, strided_copies = 0, copied_bytes = 0;
    long async_copies = 0, pageable_copies = 0, streams = 0, launches_without_stream = 0, implicit_waits = 0;
    long starts_from_idle = 0;
    long cases = 0, alive = 0;
    std::atomic<long> barriers = 0, atomics = 0;
    std::atomic<bool> added_to_unwritten = false;
    bool paused = false;
    char run[32] = "0";
    Counts() {
        if (const char* given = std::getenv("TILESMITH_RUN")) std::snprintf(run, sizeof run, "%s", given);
        unsetenv("TILESMITH_RUN");
    }
    ~Counts() {
        std::printf("run %s cases=%ld alive=%ld launches=%ld copies=%ld\n", run, cases, alive, launches, copies);
        std::printf("counts launches=%ld blocks=%ld threads=%ld barriers=%ld atomics=%ld copies=%ld "
                    "strided_copies=%ld copied_bytes=%ld async_copies=%ld pageable_copies=%ld streams=%ld "
                    "launches_without_stream=%ld implicit_waits=%ld starts_from_idle=%ld\n",
                    launches, blocks, threads, barriers.load(), atomics.load(), copies, strided_copies, copied_bytes,
                    async_copies, pageable_copies, streams, launches_without_stream, implicit_waits, starts_from_idle);
    }
    void copy(size_t bytes) {
        copies += !paused;
        copied_bytes += paused ? 0 : static_cast<long>(bytes);
    }
};
inline Counts counts;

// For the harness: its own copies do not count, and accesses are counted in its first case only.
#define UNCOUNTED(copy) (tilesmith::counts.paused = true, copy, tilesmith::counts.paused = false)
#define CASE_ENDS() (++tilesmith::counts.cases, tilesmith::case_ends())
#define ALIVE(change) tilesmith::counts.alive += (change)
#define ADDED_TO_UNWRITTEN() tilesmith::counts.added_to_unwritten

inline Barrier* barrier = nullptr;
inline char* dynamic_shared = nullptr;

// A call that a stream makes later.
struct Work {
    virtual ~Work() = default;
    virtual void run() const = 0;
};
template <typename Call> struct CallLater : Work {
    explicit CallLater(Call call) : call(call) {}
    void run() const override { call(); }
    const Call call;
};
// The work of a stream begins only when somebody waits for the stream, as it may on a GPU. So a host that reads too early
// reads old memory, and streams that rely on each other's order, which nothing promises, give wrong results.
struct Stream {
    std::vector<const Work*> work;
    void finish_first() {
        const Work* next = work.front();
        work.erase(work.begin());
        next->run();
        delete next;
    }
    void finish() {
        while (!work.empty()) finish_first();
    }
};
inline std::vector<Stream*> streams;
inline void finish_streams() {
    for (auto stream = streams.rbegin(); stream != streams.rend(); ++stream) (*stream)->finish();
}
inline bool all_idle() {
    for (const auto* stream : streams)
        if (!stream->work.empty()) return false;
    return true;
}
// What is done without a stream waits for all streams.
template <typename Call> void in_order(Stream* stream, Call call) {
    if (stream) {
        counts.starts_from_idle += all_idle();
        return stream->work.push_back(new CallLater<Call>(call));
    }
    finish_streams();
    call();
}

// A block begins with shared memory that no thread has written: large numbers, which a result shows.
inline void spoil_shared_memory() {
#ifndef ADDRESS_SANITIZER
    std::memset(__start_shared_memory, 0x7e, __stop_shared_memory - __start_shared_memory);
#endif
}

// The host must not touch GPU memory. With the address sanitizer it cannot: the memory is poisoned outside of launches
// and copies.
struct Allocation {
    void* start;
    size_t bytes;
};
inline std::vector<Allocation> device_memory;
inline void let_host_touch([[maybe_unused]] bool allowed) {
#ifdef ADDRESS_SANITIZER
    for (const auto& [memory, bytes] : device_memory)
        allowed ? __asan_unpoison_memory_region(memory, bytes) : __asan_poison_memory_region(memory, bytes);
#endif
}
struct Touching {
    Touching() { let_host_touch(true); }
    ~Touching() { let_host_touch(false); }
};

inline int last_error = 0;

template <typename... Parameters> class Launch {
  public:
    Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Stream* stream)
        : kernel_(kernel), grid_(grid), block_(block), shared_bytes_(shared_bytes), stream_(stream) {}

    void operator()(Parameters... arguments) const {
        const size_t threads = size_t{block_.x} * block_.y * block_.z;
        const bool fits = threads && threads <= 1024 && grid_.x && grid_.y && grid_.z && shared_bytes_ <= 48 << 10;
        counts.launches_without_stream += !stream_;
        if (fits)
            in_order(stream_, [launch = *this, arguments...] { launch.start(arguments...); });
        else
            last_error = 9;  // cudaErrorInvalidConfiguration
    }

  private:
    void start(Parameters... arguments) const {
        gridDim = grid_;
        blockDim = block_;
        ++counts.launches;
        const Touching touching;
        for (unsigned z = 0; z < grid_.z; ++z)
            for (unsigned y = 0; y < grid_.y; ++y)
                for (unsigned x = 0; x < grid_.x; ++x) run(dim3(x, y, z), arguments...);
        launch_ends();
    }

    void run(dim3 block, Parameters... arguments) const {
        const unsigned threads = block_.x * block_.y * block_.z;
        Barrier mine(threads);
        barrier = &mine;
        spoil_shared_memory();
        std::vector<char> dynamic(shared_bytes_, 0x7e);
        dynamic.shrink_to_fit();
        dynamic_shared = dynamic.data();
        ++counts.blocks;
        counts.threads += threads;
        std::vector<Warp> warps((threads + 31) / 32);
        for (unsigned thread = 0; thread < threads; ++thread) warps[thread / 32].lanes |= 1u << thread % 32;
        run_in_threads(threads, [&](unsigned thread) {
            blockIdx = block;
            threadIdx = dim3(thread % block_.x, thread / block_.x % block_.y, thread / (block_.x * block_.y));
            warp = &warps[thread / 32];
            lane = thread % 32;
            thread_begins();
            kernel_(arguments...);
            thread_ends(thread);
            warp->left.fetch_or(1u << lane, std::memory_order_relaxed);
            mine.leave();
        });
        block_ends();
    }

    void (*kernel_)(Parameters...);
    dim3 grid_, block_;
    size_t shared_bytes_;
    Stream* stream_;
};

}  // namespace tilesmith

template <typename... Parameters>
tilesmith::Launch<Parameters...> launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes = 0,
                                        tilesmith::Stream* stream = nullptr) {
    return {kernel, grid, block, shared_bytes, stream};
}

#define __syncthreads() tilesmith::wait_for_block(__FILE__, __LINE__)
namespace tilesmith {
inline void wait_for_block(const char* file, int line) {
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) ++counts.barriers;
    barrier->wait(file, line);
}
}  // namespace tilesmith

#include "device_functions.h"

#include "host_functions.h"
