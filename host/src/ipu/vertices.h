// The vertices of one phase: one per tile, for all of the tile's work in it.
#pragma once

#include <cstring>
#include <iterator>
#include <map>
#include <poplar/Graph.hpp>
#include <string>
#include <utility>
#include <vector>

namespace sparsesnn::ipu {

// Vertices of one class in one compute set: one per tile, for all of the tile's work in it.
class Vertices {
 public:
  // The inputs of one tile's vertex: regions and numbers by field.
  struct OfTile {
    std::map<std::string, std::vector<poplar::Tensor>> lists;
    std::map<std::string, poplar::Tensor> tensors;
    std::map<std::string, std::vector<unsigned>> numbers;
    std::map<std::string, unsigned> scalars;
    std::map<std::string, float> floats;

    unsigned size_of(const std::string& field) const {
      const auto found = lists.find(field);
      return found == lists.end() ? 0 : static_cast<unsigned>(found->second.size());
    }
    template <class Record>
    void push(const std::string& field, const Record& record) {
      static_assert(sizeof(Record) % sizeof(unsigned) == 0, "records are made of 4-byte members");
      unsigned words[sizeof(Record) / sizeof(unsigned)];
      std::memcpy(words, &record, sizeof(record));
      numbers[field].insert(numbers[field].end(), std::begin(words), std::end(words));
    }
  };

  Vertices(poplar::Graph& graph, poplar::ComputeSet cs, std::string name)
      : graph_(graph), cs_(cs), name_(std::move(name)) {}
  bool empty() const { return tiles_.empty(); }
  OfTile& on(unsigned tile) { return tiles_[tile]; }
  std::map<unsigned, OfTile>& tiles() { return tiles_; }

  void add_to_graph() {
    for (const auto& [tile, given] : tiles_) {
      const poplar::VertexRef v = graph_.addVertex(cs_, "sparsesnn::ipu::" + name_);
      graph_.setTileMapping(v, tile);
      for (const auto& [field, regions] : given.lists)
        graph_.connect(v[field], poplar::ArrayRef<poplar::Tensor>(regions));
      for (const auto& [field, t] : given.tensors) graph_.connect(v[field], t);
      for (const auto& [field, values] : given.numbers)
        graph_.setInitialValue(v[field], poplar::ArrayRef<unsigned>(values));
      for (const auto& [field, value] : given.scalars) graph_.setInitialValue(v[field], value);
      for (const auto& [field, value] : given.floats) graph_.setInitialValue(v[field], value);
    }
  }

 private:
  poplar::Graph& graph_;
  poplar::ComputeSet cs_;
  std::string name_;
  std::map<unsigned, OfTile> tiles_;
};

}  // namespace sparsesnn::ipu
