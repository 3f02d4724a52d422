#include "sparse_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "host/src/machine/thread_pool.h"
#include "host/src/training/tile_sums.h"
#include "phases.h"

namespace sparsesnn {
namespace {

// The height of the smallest subtree of the tree over all tiles that holds both.
int height(std::uint32_t a, std::uint32_t b) { return std::bit_width(a ^ b); }

[[noreturn]] void refuse(const std::string& what) { throw InputError("ShapeError", "SparseRows: " + what); }

}  // namespace

SparseRowsOf::SparseRowsOf(int n_senders_all, const std::int64_t* offsets, int n_receivers, const std::int32_t* senders,
                           std::size_t n_senders, int width, int first_neuron, bool blocks_apart)
    : tile_width(width), first(first_neuron), by_blocks(blocks_apart) {
  n_pre = n_senders_all;
  n = n_receivers;
  n_synapses = n_senders;
  if (offsets[0] != 0 || offsets[n] != static_cast<std::int64_t>(n_synapses) || n_synapses >> 32)
    refuse("offsets run from " + std::to_string(offsets[0]) + " to " + std::to_string(offsets[n]) + "; there are " +
           std::to_string(n_synapses) + " synapses, of at most 2^32");
  starts_ = Array<std::int64_t>::zeros(static_cast<std::size_t>(n_pre) + 1);
  for (int k = 0; k < n; ++k) {
    if (offsets[k + 1] < offsets[k]) refuse("offsets decrease at receiver " + std::to_string(k));
    for (std::int64_t j = offsets[k]; j < offsets[k + 1]; ++j) {
      if (senders[j] < 0 || senders[j] >= n_pre || (j > offsets[k] && senders[j] <= senders[j - 1]))
        refuse("receiver " + std::to_string(k) + " has sender " + std::to_string(senders[j]) +
               "; give senders from 0 to " + std::to_string(n_pre - 1) + ", ascending");
      ++starts_[senders[j] + 1];
    }
  }
  for (int m = 0; m < n_pre; ++m) {
    longest = std::max(longest, static_cast<std::size_t>(starts_[m + 1]));
    starts_[m + 1] += starts_[m];
  }
  receivers_ = Array<std::uint32_t>(n_synapses);
  places_ = Array<std::uint32_t>(n_synapses);
  folds_ = Array<std::uint8_t>(n_synapses);
  std::vector<std::int64_t> next(starts_.data(), starts_.data() + n_pre);
  for (int k = 0; k < n; ++k)
    for (std::int64_t j = offsets[k]; j < offsets[k + 1]; ++j) {
      const std::int64_t at = next[senders[j]]++;
      receivers_[at] = static_cast<std::uint32_t>(k);
      places_[at] = static_cast<std::uint32_t>(j);
    }

  const int first_tile = first / tile_width, n_tiles = (n + tile_width - 1) / tile_width;
  if (by_blocks)
    for (const TileBlock& block : tile_blocks(first_tile, first_tile + n_tiles))
      block_ends_.push_back(block.first + block.n - first_tile);
  else
    block_ends_.push_back(n_tiles);
  const auto tile_of = [&](std::int64_t e) { return static_cast<int>(receivers_[e]) / tile_width; };
  const auto block_of = [&](int tile) { return std::upper_bound(block_ends_.begin(), block_ends_.end(), tile); };
  std::vector<int> waiting;  // the last tile of each pending sum
  for (int m = 0; m < n_pre; ++m)
    for (std::int64_t e = starts_[m]; e < starts_[m + 1]; ++e) {
      const int tile = tile_of(e), after = e + 1 < starts_[m + 1] ? tile_of(e + 1) : -1;
      if (tile == after) {
        folds_[e] = more_of_tile;
        continue;
      }
      waiting.push_back(tile);
      const bool ends = after < 0 || block_of(tile) != block_of(after);
      int folds = 0;
      const auto global = [&](int t) { return static_cast<std::uint32_t>(first_tile + t); };
      const auto before = [&] { return global(waiting[waiting.size() - 2]); };
      while (waiting.size() > 1 && (ends || height(before(), global(tile)) < height(global(tile), global(after)))) {
        waiting.erase(waiting.end() - 2);
        ++folds;
      }
      if (ends) waiting.clear();
      folds_[e] = static_cast<std::uint8_t>(folds | (ends ? ends_block : 0));
    }
  starts = starts_.data();
  receivers = receivers_.data();
  places = places_.data();
  folds = folds_.data();
  block_ends = block_ends_.data();
  n_blocks = static_cast<int>(block_ends_.size());
}

Packed pack_rows_of(const SparseRows& rows, const float* weight, bool bf16, const char* name) {
  const PhaseTimer timer(Phase::pack);
  constexpr std::size_t piece = 1 << 16;
  Packed packed{nullptr, Array<unsigned char>(sizeof(float) * rows.n_synapses)};
  float* const out = reinterpret_cast<float*>(packed.own.data());
  packed.data = out;
  std::vector<char> finite((rows.n_synapses + piece - 1) / piece);
  parallel_for(static_cast<int>(finite.size()), [&](int item, int) {
    const std::size_t begin = item * piece, end = std::min(rows.n_synapses, begin + piece);
    float zero = 0.0f;  // stays 0 unless a weight is NaN or infinite
    for (std::size_t e = begin; e < end; ++e) {
      const float x = weight[rows.places[e]];
      zero += x * 0.0f;
      out[e] = bf16 ? rounded_to_bf16(x) : x;
    }
    finite[item] = zero == 0.0f;
  });
  if (std::find(finite.begin(), finite.end(), 0) != finite.end())
    for (std::size_t k = 0; k < rows.n_synapses; ++k)
      if (!std::isfinite(weight[k]))
        throw InputError("NumericError", std::string(name) + " holds " + (std::isnan(weight[k]) ? "NaN" : "infinity") +
                                             " at [" + std::to_string(k) +
                                             "]; weights must be finite: lower the learning rate or clip gradients");
  return packed;
}

PackedLoops::PackedLoops(const LayerSpec& spec, const LayerInput& input) {
  constexpr const char* name = "recurrent_weight";
  for (const LoopInput& from : input.loops) {
    packed.push_back(from.rows ? pack_rows_of(*from.rows, from.weight, spec.bf16, name)
                               : pack_unless(from.packed, from.weight, spec.n_all(), spec, spec.n_padded(), name));
    loops.push_back({packed.back().data, from.rows, from.delay, from.axonal});
    longest = std::max(longest, from.reach());
  }
}

}  // namespace sparsesnn
