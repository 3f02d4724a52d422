// The IPU program of a plan: one graph, five programs, and the host's side of its streams.
//
//   forward step    fetch (input lists of this step) → round by round: forward on shards, compact on collectors
//   backward step   fetch (all lists) → round by round, last first: list gradients on the shards of post, sums on
//                   reducers, sums on collectors, state gradients on shards → weight gradients of the input
//   batch           T forward steps, decode, loss, T backward steps, norm, update
//
// Populations joined by delay 0 run in rounds, one after another; those joined by a delay share one. The loop body is
// the same for all t: vertices keep t themselves.
//
// The graph builder is one class (builder.h) with a file for each phase:
//
//   program.cpp     the five programs, the host's end of the streams
//   device.cpp      the device; which replicas of several processes are this one's
//   rounds.cpp      order of execution; clocks
//   variables.cpp   variables and their tiles
//   streams.cpp     streams between host and device
//   forward.cpp     forward steps: fetch, step, compact
//   loss.cpp        loss, activity regularizer
//   backward.cpp    backward steps: list gradients, sums, state gradients
//   update.cpp      replicas, norm, optimizer
//   passes.cpp      one pass inside another program's graph (passes.h)
//
// vertices.h and parted.h hold helpers of all phases; spec.h is the description that they read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "spec.h"

namespace sparsesnn::ipu {

// `ipu_of_poprun`: the IPUs that PopDist chooses for this process.
enum class DeviceKind { ipu_model, ipu, ipu_of_poprun };

// A stream's memory on the host.
struct Buffer {
  enum class Type { float32, uint32, uint16, float16 };
  Type type;
  std::size_t n;      // of all copies
  unsigned n_copies;  // one a replica, or one for all
  bool to_device, to_host;
  std::vector<std::uint64_t> memory;  // uint64 for alignment

  void* data() { return memory.data(); }
  std::size_t element_bytes() const { return type == Type::uint16 || type == Type::float16 ? 2 : 4; }
};

class Program {
 public:
  // `codelets`: path of the compiled codelets, only for the SDK. Throws std::invalid_argument for a meaningless spec,
  // and poplar_error if it does not fit on the machine.
  Program(const ProgramSpec& spec, DeviceKind device, const std::string& codelets);
  ~Program();

  // load: weights, moments, parameters from the host; train, infer: one batch; save: weights and moments to the host;
  // lists: lists and dropped counts to the host.
  void run(const std::string& program);
  // "weights.0", "labels", …; see names().
  Buffer& buffer(const std::string& name);
  std::vector<std::string> names() const;

  struct Parts;
  Parts& parts() { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
};

}  // namespace sparsesnn::ipu
