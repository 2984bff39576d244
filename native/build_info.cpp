#include "build_info.hpp"

namespace pccl {
namespace {

std::string compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> found;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    // The builtin takes string literals only, hence no loop over a table. These are the sets that kernels choose
    // between.
    if (__builtin_cpu_supports("sse4.2")) found.emplace_back("sse4.2");
    if (__builtin_cpu_supports("avx")) found.emplace_back("avx");
    if (__builtin_cpu_supports("fma")) found.emplace_back("fma");
    if (__builtin_cpu_supports("avx2")) found.emplace_back("avx2");
    if (__builtin_cpu_supports("avx512f")) found.emplace_back("avx512f");
    if (__builtin_cpu_supports("avx512bw")) found.emplace_back("avx512bw");
    if (__builtin_cpu_supports("avx512vl")) found.emplace_back("avx512vl");
#elif defined(__aarch64__)
    found.emplace_back("neon");  // part of every 64-bit Arm processor
#endif
    return found;
}

}  // namespace

BuildInfo build_info() {
    return {compiler(), __cplusplus, instruction_sets()};
}

}  // namespace pccl
