// The messages between a chain's layers, among the ranks of a replica, which share the neurons of its populations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exchange.h"
#include "host/src/bindings/python_layer.h"
#include "host/src/bindings/python_run.h"
#include "shard_lists.h"

namespace sparsesnn {

// From Python's (delay, n_rows, n_groups) or None; see `Part.order` in engines/ranks/layer.py.
std::optional<ListOrder> list_order(nb::handle python);

class ChainShards {
 public:
  // First neuron of every rank, and behind them the number of neurons: [R + 1].
  using First = std::vector<std::uint32_t>;

  // `python`: an engines/ranks/chain_shards.py.
  explicit ChainShards(const nb::object& python);
  std::size_t size() const { return first_.size(); }
  const First& first(std::size_t layer) const { return first_[layer]; }
  const First& first_of_input(std::size_t input) const { return inputs_[input]; }
  std::size_t n_inputs() const { return inputs_.size(); }

  // The lists or potentials of layer k's population from those of all ranks; `layer` is this rank's part of it.
  // `own`: that of this rank; null if it has no neurons.
  std::shared_ptr<PyRun> whole(std::size_t k, const PyLayer& layer, std::shared_ptr<PyRun> own, bool watched) const;

  // The numbers of this rank's entries, from those of all entries of lists.
  Array<float> own_part(const First& first, PyRun& whole, const OutputGrads& all) const;
  // The same for the neurons of potentials' gradients.
  Array<float> own_columns(const First& first, PyRun& whole, const OutputGrads& all) const;
  // The inverse for lists: 0 for the entries of other ranks.
  Array<float> all_entries(const First& first, const PyRun& whole, const float* own) const;
  // How many entries of lists are this rank's.
  std::size_t n_own(const First& first, PyRun& whole) const;

  // Lists that a layer read.
  struct Read {
    const First& first;
    PyRun& lists;
    bool by_event;         // the gradient comes in the order of its sorted lists
    Array<float> d_value;  // [blocks of this rank's tiles][entries]; empty where this rank has no tiles
  };
  // Returns, of each, the sums over the tiles of all ranks for this rank's own entries.
  std::vector<Array<float>> to_owners(std::size_t k, std::vector<Read> reads) const;

 private:
  bool owns_all(std::size_t k) const { return first_[k][rank_ + 1] - first_[k][rank_] == first_[k].back(); }
  bool owns(const First& first, std::uint32_t id) const { return id >= first[rank_] && id < first[rank_ + 1]; }
  MergedLists whole_lists(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own,
                          ValueOrder& order) const;
  Array<float> whole_potentials(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own) const;

  // Splits the gradients of lists by the ranks that own the entries.
  std::vector<Array<float>> parts_for_owners(Read& read) const;

  std::shared_ptr<Exchange> exchange_;
  std::size_t rank_;
  std::vector<First> first_, inputs_;               // by layer; by input of the chain
  std::vector<std::vector<int>> folds_;             // by layer, as block_folds of tile_sums.h
  std::vector<std::vector<std::size_t>> n_blocks_;  // by layer, of each rank's tiles, [R]
  std::vector<std::optional<ListOrder>> orders_;    // by layer, for whom its lists are sorted
};

}  // namespace sparsesnn
