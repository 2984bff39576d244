// The outer step of a training run: a pass over its memory. Knows nothing of rounds or peers.
#pragma once

#include <cstddef>

namespace pccl {

struct OuterRates {
    float total;     // of all weights
    float rate;      // of the step
    float momentum;  // of Nesterov's kind
};

// Of the mean delta and the momentum before the step; for people, and not the same to the last bit everywhere.
struct OuterFigures {
    double delta = 0.0;
    double momentum = 0.0;
    double both = 0.0;
};

// d = delta / total; v = m * v + d; theta = theta - rate * (d + m * v). Each operation is rounded for itself, so that
// all machines get the same bits.
OuterFigures outer_step(float* theta, float* momentum, const float* delta, std::size_t count, const OuterRates& rates);

}  // namespace pccl
