// Part of the emulated machine: the one collective between replicas that the IPU program uses. Here the replicas'
// values are added in their order; the order in the real library is not documented.
#pragma once

#include <poplar/Program.hpp>

namespace gcl {

enum class CollectiveOperator { ADD };
enum class CommGroupType { ALL };

class CommGroup {
 public:
  CommGroup(CommGroupType, unsigned size) : size_(size) {}
  unsigned replicaGroupSize() const { return size_; }  // 0: all replicas

 private:
  unsigned size_;
};

void allReduceInPlaceCrossReplica(poplar::Graph& graph, poplar::Tensor& data, CollectiveOperator op,
                                  poplar::program::Sequence& program, const CommGroup& group,
                                  const poplar::DebugContext& name = {}, const poplar::OptionFlags& options = {});

}  // namespace gcl
