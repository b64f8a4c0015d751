// The events that a launch reports to accesses.cpp in the counting build. In other builds, these functions are empty.
#pragma once

#include <cstddef>

namespace tilesmith {

#ifdef COUNT_ACCESSES
void allocated(void* pointer, size_t bytes);
void freed(void* pointer);
void thread_begins();
void thread_ends(unsigned thread);
void block_ends();
void launch_ends();
void case_ends();
#else
inline void allocated(void*, size_t) {}
inline void freed(void*) {}
inline void thread_begins() {}
inline void thread_ends(unsigned) {}
inline void block_ends() {}
inline void launch_ends() {}
inline void case_ends() {}
#endif

}  // namespace tilesmith
