// What this build is and what the machine under it can do. Knows nothing of Python.
#pragma once

#include <string>
#include <vector>

namespace pccl {

struct BuildInfo {
    std::string compiler;
    long cxx_standard;                          // value of __cplusplus, such as 202002
    std::vector<std::string> instruction_sets;  // found at run time: the build machine may be another one
};

BuildInfo build_info();

}  // namespace pccl
