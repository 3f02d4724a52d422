// The data of a graph.
#pragma once

#include <string>
#include <vector>

#include "poplar/Graph.hpp"
#include "registry.h"

namespace poplar {

struct Mapping {
  std::size_t begin, end;
  unsigned tile;
};

struct Variable {
  Type type;
  std::size_t n;
  std::string name;
  std::vector<Mapping> mapping;         // as set; sorted when the graph is compiled
  std::vector<unsigned char> constant;  // its values, if it is a constant
  bool is_constant = false;
};

struct ConnectionData {
  std::vector<Tensor> regions;
  std::vector<unsigned char> initial;  // of vertex state
  std::size_t n_initial = 0;
  bool set = false;
};

struct VertexData {
  const sparsesnn::emulator::VertexClass* type;
  unsigned compute_set;
  long tile = -1;
  std::vector<ConnectionData> fields;  // as in type->fields
};

class GraphData {
 public:
  GraphData(const Target& target, unsigned n_replicas) : target(target), n_replicas(n_replicas) {}
  Target target;  // for one replica
  unsigned n_replicas;
  std::vector<Variable> variables;
  std::vector<VertexData> vertices;
  std::vector<std::string> compute_sets;
  std::vector<DataStream> streams;

  std::string name_of(unsigned vertex) const;
  ConnectionData& field(const FieldRef& ref, const sparsesnn::emulator::Field** found);
};

}  // namespace poplar
