#include LEARNERS_FILE

#include "harness.h"

int main() {
    const int sizes[][2] = {{4, 100}, {3, 64}, {1, 1}};
    for (const auto& [rows, columns] : sizes) {
        const auto values = numbers(rows * columns), weights = numbers(columns, 2);
        Buffer x(values), weight(weights), out(unwritten(rows * columns));
        rms_norm(x, weight, out, rows, columns, 1e-6f);
        std::vector<double> wanted;
        for (int row = 0; row < rows; ++row) {
            double squares = 0.0;
            for (int column = 0; column < columns; ++column) squares += std::pow(values[row * columns + column], 2);
            for (int column = 0; column < columns; ++column)
                wanted.push_back(values[row * columns + column] / std::sqrt(squares / columns + 1e-6) * weights[column]);
        }
        char tried[64];
        std::snprintf(tried, sizeof tried, "rows = %d, columns = %d", rows, columns);
        expect(tried, out.values(), wanted);
    }
}
