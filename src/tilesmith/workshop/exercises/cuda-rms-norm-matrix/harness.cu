#include LEARNERS_FILE

#include "harness.h"

void try_size(int rows, int columns, bool timing = false) {
    auto values = numbers(rows * columns);
    const auto weights = numbers(columns, 2);
    const bool tiny = columns == 1;  // so small that epsilon decides; 2e-6 is no usual value
    for (auto& value : values) value *= tiny ? 1e-3f : 1.0f;
    Buffer x(values), weight(weights), out(unwritten(rows * columns));
    rms_norm(x, weight, out, rows, columns, 2e-6f);
    std::vector<double> wanted;
    for (int row = 0; row < rows; ++row) {
        double squares = 0.0;
        for (int column = 0; column < columns; ++column) squares += std::pow(values[row * columns + column], 2);
        for (int column = 0; column < columns; ++column)
            wanted.push_back(values[row * columns + column] / std::sqrt(squares / columns + 2e-6) * weights[column]);
    }
    char tried[128];
    std::snprintf(tried, sizeof tried, "rows = %d, columns = %d%s", rows, columns,
                          tiny ? ", a number so small that epsilon decides: is it added under the root, and is it the argument?" : "");
    expect(tried, out.values(), wanted);
    if (timing) print_time([&] { rms_norm(x, weight, out, rows, columns, 2e-6f); });
}

int main(int words, char** word) {
    const auto timed = sizes_to_time(words, word);
    if (!timed.empty()) return try_size(timed[0], timed[1], true), 0;
    const int sizes[][2] = {{4, 100}, {3, 1100}, {1, 1}};
    for (const auto& [rows, columns] : sizes) try_size(rows, columns);
}
