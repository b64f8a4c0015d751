#include LEARNERS_FILE

#include "harness.h"

void try_size(int elements, bool timing = false) {
    auto values = numbers(elements);
    // The order of the additions is random, and a sum of millions that cancel is mostly rounding error.
    for (auto& value : values) value = std::fabs(value);
    Buffer x(values), total(unwritten(1));
    sum(x, total, elements);
    double wanted = 0.0;
    for (double value : values) wanted += value;
    char tried[64];
    std::snprintf(tried, sizeof tried, "elements = %d", elements);
    expect(tried, total.values(), {wanted});
    if (timing) print_time([&] { sum(x, total, elements); });
}

int main(int words, char** word) {
    const auto timed = sizes_to_time(words, word);
    if (!timed.empty()) return try_size(timed[0], true), 0;
    for (int elements : {64, 1100, 1}) try_size(elements);
}
