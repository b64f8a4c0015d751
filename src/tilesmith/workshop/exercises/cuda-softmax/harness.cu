#include LEARNERS_FILE

#include "harness.h"

void try_size(int rows, int columns) {
    auto values = numbers(rows * columns);
    const bool negative = columns == 37;
    // Up to 120: exp overflows without the maximum. Below -130: exp is 0 where the maximum begins at 0.
    for (auto& value : values) value = 60.0f * value - (negative ? 250.0f : 0.0f);
    Buffer x(values), y(unwritten(rows * columns));
    softmax(x, y, rows, columns);
    std::vector<double> wanted;
    for (int row = 0; row < rows; ++row) {
        const float* mine = values.data() + row * columns;
        const double largest = *std::max_element(mine, mine + columns);
        double total = 0.0;
        for (int column = 0; column < columns; ++column) total += std::exp(mine[column] - largest);
        for (int column = 0; column < columns; ++column) wanted.push_back(std::exp(mine[column] - largest) / total);
    }
    char tried[128];
    std::snprintf(tried, sizeof tried, "rows = %d, columns = %d%s", rows, columns,
                  negative ? ", all numbers below -100: with which number does the maximum begin?" : "");
    expect(tried, y.values(), wanted);
}

int main() {
    const int sizes[][2] = {{2, 128}, {3, 1100}, {2, 37}, {1, 1}};
    for (const auto& [rows, columns] : sizes) try_size(rows, columns);
}
