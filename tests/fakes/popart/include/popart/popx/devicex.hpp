// Fake PopART, for tests: the device with the graph and, while an op is grown, its input and output tensors.
#pragma once

#include <map>
#include <poplar/Graph.hpp>

namespace popart {
namespace popx {

class Devicex {
 public:
  explicit Devicex(poplar::Graph& graph) : graph(graph) {}
  poplar::Graph& graph;
  std::map<int, poplar::Tensor> in, out;
};

}  // namespace popx
}  // namespace popart
