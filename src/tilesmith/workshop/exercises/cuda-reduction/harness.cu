#include LEARNERS_FILE

#include "harness.h"

int main() {
    for (int elements : {64, 200, 1}) {
        const auto values = numbers(elements);
        Buffer x(values), total(unwritten(1));
        sum(x, total, elements);
        double wanted = 0.0;
        for (double value : values) wanted += value;
        char tried[64];
        std::snprintf(tried, sizeof tried, "elements = %d", elements);
        expect(tried, total.values(), {wanted});
    }
}
