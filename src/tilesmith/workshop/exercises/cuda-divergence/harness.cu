#include LEARNERS_FILE

#include "harness.h"

void try_size(int pairs) {
    const auto values = numbers(2 * pairs), angles = numbers(pairs, 7);
    std::vector<float> cosines, sines;
    for (float angle : angles) cosines.push_back(std::cos(angle)), sines.push_back(std::sin(angle));
    Buffer x(values), cosine(cosines), sine(sines), y(unwritten(2 * pairs));
    rotate(x, cosine, sine, y, pairs);
    std::vector<double> wanted;
    for (int pair = 0; pair < pairs; ++pair) {
        const double first = values[2 * pair], second = values[2 * pair + 1];
        wanted.push_back(first * cosines[pair] - second * sines[pair]);
        wanted.push_back(first * sines[pair] + second * cosines[pair]);
    }
    char tried[64];
    std::snprintf(tried, sizeof tried, "pairs = %d", pairs);
    expect(tried, y.values(), wanted);
}

int main() {
    for (int pairs : {128, 50, 320, 1}) try_size(pairs);
}
