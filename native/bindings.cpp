// The module pccl._native: the only file of the native part that knows Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "build_info.hpp"

namespace nb = nanobind;

NB_MODULE(_native, module) {
    module.doc() = "The native data plane.";

    module.def(
        "build_info",
        [] {
            const pccl::BuildInfo info = pccl::build_info();
            nb::dict facts;
            facts["compiler"] = info.compiler;
            facts["cxx_standard"] = info.cxx_standard;
            facts["instruction_sets"] = info.instruction_sets;
            return facts;
        },
        "Compiler and C++ standard of this build, and the instruction sets of the machine it runs on.");
}
