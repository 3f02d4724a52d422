// The device of a program, and how one process drives its part of a graph of all replicas.
//
// Each of several processes (instances of PopRun) builds the same graph, of all replicas on all IPUs, and runs its own
// replicas on its own device. The calls are those that PopART makes for distributed replicated graphs.
#pragma once

#include <poplar/Device.hpp>
#include <poplar/Engine.hpp>
#include <poplar/OptionFlags.hpp>
#include <poplar/Target.hpp>

#include "program.h"

namespace sparsesnn::ipu {

// A device for this process's replicas, attached: any free one, or under PopRun the one that PopDist chooses.
poplar::Device make_device(DeviceKind kind, const ProgramSpec& spec);

// The graph's target: the IPUs of all replicas, in whichever process.
poplar::Target graph_target(const poplar::Device& device, const ProgramSpec& spec);

// The replicas that an engine runs; empty if it runs all of them.
poplar::OptionFlags engine_options(const ProgramSpec& spec);

// Runs a program, in step with the other processes if there are any: a late host would let a sync time out.
void run_in_step(poplar::Engine& engine, unsigned program);

// Ends the communication of processes, if there was any.
void end_processes();

}  // namespace sparsesnn::ipu
