// The messages between a replica's ranks, which share the neurons of a chain's populations, between its layers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "host/src/bindings/python_layer.h"
#include "host/src/bindings/python_run.h"
#include "shard_lists.h"

namespace sparsesnn {

// From Python's (delay, n_rows, n_groups) or None; see `Part.order` in engines/ranks/layer.py.
std::optional<ListOrder> list_order(nb::handle python);

class ChainShards {
 public:
  // `python` sends and receives; see engines/ranks/chain_shards.py.
  explicit ChainShards(nb::object python);
  std::size_t size() const { return first_.size(); }

  // The lists or potentials of population k, of which `layer` is this rank's part, from those of all ranks; `own`: of
  // this rank, null if it has no neurons.
  std::shared_ptr<PyRun> whole(std::size_t k, const PyLayer& layer, std::shared_ptr<PyRun> own, bool watched) const;

  // This rank's part of the gradient of the whole population k's output.
  Array<float> own_part(std::size_t k, const PyRun& whole, const OutputGrads& d_out) const;

  // From the gradients of the tiles of population k for the list values of its `sources`: d_value, for each source
  // [blocks of this rank's tiles][entries], which is consumed, empty if this rank has no tiles. Returns, for each
  // source, the sums over the tiles of all ranks for this rank's own entries. `runs`: of all populations.
  std::vector<Array<float>> to_owners(std::size_t k, const std::vector<std::size_t>& sources,
                                      const std::vector<std::shared_ptr<PyRun>>& runs,
                                      std::vector<Array<float>>& d_value) const;

 private:
  bool owns_all(std::size_t k) const { return first_[k][rank_ + 1] - first_[k][rank_] == first_[k].back(); }
  MergedLists whole_lists(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own,
                          ValueOrder& order) const;
  Array<float> whole_potentials(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own) const;

  // The messages of all ranks on the lists of population k; this rank sends `message` about its `own`; `held`: the
  // arrays that the messages point into.
  std::vector<Message> messages_of(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own,
                                   Array<unsigned char> message, std::vector<In<unsigned char>>& held) const;

  // Splits values [K, entries] of a population's lists, in the order in which a pass returns them, by the ranks that
  // own the neurons.
  nb::list parts_for_owners(std::size_t k, const PyRun& whole, Array<float>& values) const;

  nb::object python_;
  std::size_t rank_;
  std::vector<std::vector<std::uint32_t>>
      first_;  // by population, the first neuron of each rank, then the number of neurons: [R + 1]
  std::vector<std::vector<int>> folds_;           // by population, as block_folds of tile_sums.h
  std::vector<std::optional<ListOrder>> orders_;  // by population, the order in which its lists are sorted
};

}  // namespace sparsesnn
