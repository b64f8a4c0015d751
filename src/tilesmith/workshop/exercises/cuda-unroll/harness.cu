#include LEARNERS_FILE

#include "harness.h"

void try_size(int elements) {
    const auto values = numbers(elements);
    Buffer x(values), y(unwritten(elements));
    apply_series(x, y, elements);
    std::vector<double> wanted;
    for (double one : values) wanted.push_back(1 + one + one * one / 2 + one * one * one / 6 + one * one * one * one / 24);
    char tried[64];
    std::snprintf(tried, sizeof tried, "elements = %d", elements);
    expect(tried, y.values(), wanted);
}

int main() {
    for (int elements : {512, 300, 257, 1}) try_size(elements);
}
