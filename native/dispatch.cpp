#include "kernels.hpp"

namespace pccl {

extern const Kernels kernels_plain;
#if defined(PCCL_X86_VARIANTS)
extern const Kernels kernels_v3;
extern const Kernels kernels_v4;
#endif

std::size_t usable_kernels(const Kernels* found[4]) {
    std::size_t count = 0;
    found[count++] = &kernels_plain;
#if defined(PCCL_X86_VARIANTS)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
        found[count++] = &kernels_v3;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            found[count++] = &kernels_v4;
        }
    }
#endif
    return count;
}

const Kernels& kernels() {
    static const Kernels& best = []() -> const Kernels& {
        const Kernels* found[4];
        return *found[usable_kernels(found) - 1];
    }();
    return best;
}

}  // namespace pccl
