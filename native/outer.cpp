#include "outer.hpp"

namespace pccl {
namespace {

constexpr std::size_t side_by_side = 16;  // elements: what the widest registers of our machines hold
constexpr std::size_t block = 4096;       // elements whose figures are added in float before they are in double

struct Sums {
    float delta[side_by_side] = {};
    float momentum[side_by_side] = {};
    float both[side_by_side] = {};
};

inline void step_one(float& theta, float& momentum, float delta, const OuterRates& rates, Sums& sums, std::size_t at) {
    const float mean = delta / rates.total;
    sums.delta[at] += mean * mean;
    sums.momentum[at] += momentum * momentum;
    sums.both[at] += mean * momentum;
    momentum = momentum * rates.momentum + mean;
    theta = theta - rates.rate * (momentum * rates.momentum + mean);
}

}  // namespace

OuterFigures outer_step(float* theta, float* momentum, const float* delta, std::size_t count, const OuterRates& rates) {
    float* __restrict t = theta;
    float* __restrict v = momentum;
    const float* __restrict d = delta;
    OuterFigures found;
    for (std::size_t begin = 0; begin < count; begin += block) {
        const std::size_t end = begin + block < count ? begin + block : count;
        Sums sums;
        std::size_t i = begin;
        for (; i + side_by_side <= end; i += side_by_side)
            for (std::size_t at = 0; at < side_by_side; ++at)
                step_one(t[i + at], v[i + at], d[i + at], rates, sums, at);
        for (; i < end; ++i) step_one(t[i], v[i], d[i], rates, sums, i % side_by_side);
        for (std::size_t at = 0; at < side_by_side; ++at) {
            found.delta += sums.delta[at];
            found.momentum += sums.momentum[at];
            found.both += sums.both[at];
        }
    }
    return found;
}

}  // namespace pccl
