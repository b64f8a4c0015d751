#include LEARNERS_FILE

#include "harness.h"

void try_size(int elements, bool timing = false) {
    const auto values = numbers(elements);
    Buffer x(values), out(unwritten(elements));
    silu(x, out, elements);
    std::vector<double> wanted;
    for (double value : values) wanted.push_back(value / (1.0 + std::exp(-value)));
    char tried[64];
    std::snprintf(tried, sizeof tried, "elements = %d", elements);
    expect(tried, out.values(), wanted);
    if (timing) print_time([&] { silu(x, out, elements); });
}

int main(int words, char** word) {
    const auto timed = sizes_to_time(words, word);
    if (!timed.empty()) return try_size(timed[0], true), 0;
    for (int elements : {256, 100, 1}) try_size(elements);
}
