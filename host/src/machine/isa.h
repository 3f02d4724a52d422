// Instruction sets: which are built, which this machine runs, and which is in use.
//
// *kernels.cpp are compiled once per instruction set into its own namespace (cmake/isa.cmake); one table of passes is
// chosen when the module is imported. All of them give the same bits, so the choice is about speed only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sparsesnn {

// Names of the instruction sets in this build, plainest first: of "base", "avx2" and "avx512" those that were compiled.
std::vector<std::string> isas_built();

// Those that this machine can run; empty only if the module refuses to load.
std::vector<std::string> isas_supported();

// The instruction set in use: the best supported one until set_isa chooses another.
std::string isa_name();

// Chooses by name; throws std::invalid_argument if it is not built or the machine cannot run it. Not while a pass runs
// in another thread.
void set_isa(std::string_view name);

// Applies the environment variable SPARSESNN_ISA, if it is set and not empty. Throws std::runtime_error if this machine
// runs none of the instruction sets in this build.
void set_isa_from_environment();

}  // namespace sparsesnn
