#include LEARNERS_FILE

#include "harness.h"

void try_size(int rows, int columns, bool timing = false) {
    const auto values = numbers(rows * columns);
    Buffer x(values), out(unwritten(rows * columns));
    transpose(x, out, rows, columns);
    std::vector<double> wanted;
    for (int column = 0; column < columns; ++column)
        for (int row = 0; row < rows; ++row) wanted.push_back(values[row * columns + column]);
    char tried[64];
    std::snprintf(tried, sizeof tried, "rows = %d, columns = %d", rows, columns);
    expect(tried, out.values(), wanted);
    if (timing) print_time([&] { transpose(x, out, rows, columns); });
}

int main(int words, char** word) {
    const auto timed = sizes_to_time(words, word);
    if (!timed.empty()) return try_size(timed[0], timed[1], true), 0;
    const int sizes[][2] = {{32, 32}, {20, 37}, {35, 3}};
    for (const auto& [rows, columns] : sizes) try_size(rows, columns);
}
