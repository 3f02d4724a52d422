// A variable cut into parts on many tiles.
#pragma once

#include <poplar/Graph.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace sparsesnn::ipu {

inline std::size_t even(std::size_t n) { return (n + 1) & ~std::size_t{1}; }

// A tensor cut into parts, each on a tile.
class Parted {
 public:
  Parted() = default;
  Parted(poplar::Graph& graph, const poplar::Type& type, const std::vector<std::size_t>& sizes,
         const std::vector<unsigned>& tiles, const std::string& name)
      : Parted(sizes) {
    all_ = graph.addVariable(type, {bounds_.back()}, name);
    for (std::size_t k = 0; k < tiles.size(); ++k) graph.setTileMapping(part(k), tiles[k]);
  }
  // A tensor with another owner, at the tiles where the owner put it.
  Parted(const poplar::Tensor& given, const std::vector<std::size_t>& sizes) : Parted(sizes) {
    if (given.numElements() != bounds_.back())
      throw std::invalid_argument("IPU program: a tensor of " + std::to_string(given.numElements()) +
                                  " elements was given; needed: " + std::to_string(bounds_.back()));
    all_ = given;
  }
  const poplar::Tensor& all() const { return all_; }
  poplar::Tensor part(std::size_t k) const { return all_.slice(bounds_[k], bounds_[k + 1]); }

 private:
  explicit Parted(const std::vector<std::size_t>& sizes) {
    for (const std::size_t n : sizes) bounds_.push_back(bounds_.back() + n);
  }
  poplar::Tensor all_;
  std::vector<std::size_t> bounds_{0};
};

}  // namespace sparsesnn::ipu
