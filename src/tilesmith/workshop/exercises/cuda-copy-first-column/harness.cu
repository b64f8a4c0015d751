#include LEARNERS_FILE

#include "harness.h"

int main() {
    const int sizes[][2] = {{50, 40}, {7, 3}, {1, 1}};
    for (const auto& [rows, columns] : sizes) {
        const auto matrix = numbers(rows * columns);
        Buffer column(unwritten(rows));
        copy_first_column(matrix.data(), column, rows, columns);
        std::vector<double> wanted;
        for (int row = 0; row < rows; ++row) wanted.push_back(matrix[row * columns]);
        char tried[64];
        std::snprintf(tried, sizeof tried, "rows = %d, columns = %d", rows, columns);
        expect(tried, column.values(), wanted);
    }
}
