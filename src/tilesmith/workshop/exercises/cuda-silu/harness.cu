#include LEARNERS_FILE

#include "harness.h"

int main() {
    for (int elements : {256, 100, 1}) {
        const auto values = numbers(elements);
        Buffer x(values), out(unwritten(elements));
        silu(x, out, elements);
        std::vector<double> wanted;
        for (double value : values) wanted.push_back(value / (1.0 + std::exp(-value)));
        char tried[64];
        std::snprintf(tried, sizeof tried, "elements = %d", elements);
        expect(tried, out.values(), wanted);
    }
}
