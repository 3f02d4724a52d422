// Part of the emulated machine: building a graph. Functions not declared here are not emulated, and do not compile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "Target.hpp"
#include "Tensor.hpp"
#include "Types.hpp"

namespace poplar {

class GraphData;

class ComputeSet {
 public:
  ComputeSet() = default;
  explicit ComputeSet(unsigned id) : id_(id) {}
  unsigned getId() const { return id_; }

 private:
  unsigned id_ = ~0u;
};

class FieldRef {
 public:
  FieldRef(unsigned vertex, std::string name) : vertex_(vertex), name_(std::move(name)) {}
  unsigned vertex() const { return vertex_; }
  const std::string& name() const { return name_; }

 private:
  unsigned vertex_;
  std::string name_;
};

class VertexRef {
 public:
  VertexRef() = default;
  explicit VertexRef(unsigned id) : id_(id) {}
  unsigned getId() const { return id_; }
  FieldRef operator[](StringRef field) const { return FieldRef(id_, field); }

 private:
  unsigned id_ = ~0u;
};

class DataStream {
 public:
  DataStream() = default;
  DataStream(std::string handle, Type type, std::size_t n, bool to_device)
      : handle_(std::move(handle)), type_(type), n_(n), to_device_(to_device) {}
  std::string handle() const { return handle_; }
  Type elementType() const { return type_; }
  std::size_t numElements() const { return n_; }
  bool toDevice() const { return to_device_; }

 private:
  std::string handle_;
  Type type_ = FLOAT;
  std::size_t n_ = 0;
  bool to_device_ = true;
};

// Copies of a graph, each on a part of the target's IPUs.
struct replication_factor {
  explicit constexpr replication_factor(unsigned n) : count(n) {}
  unsigned count;
};

class Graph {
 public:
  explicit Graph(const Target& target, replication_factor replicas = replication_factor(1));
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  const Target& getTarget() const;  // of one replica
  unsigned getReplicationFactor() const;

  // The codelets are linked in: there is no file to load, but its name must be one that popc could have made.
  bool addCodelets(StringRef file);

  Tensor addVariable(const Type& type, ArrayRef<std::size_t> shape, const DebugContext& name = {});
  template <class T>
  Tensor addConstant(const Type& type, ArrayRef<std::size_t> shape, ArrayRef<T> values, const DebugContext& name = {}) {
    return constant(type, equivalent_device_type<T>::value, shape, values.data(), values.size(), name);
  }

  void setTileMapping(const Tensor& tensor, unsigned tile);
  void setTileMapping(VertexRef vertex, unsigned tile);

  ComputeSet addComputeSet(const DebugContext& name = {});
  VertexRef addVertex(ComputeSet compute_set, StringRef vertex_class);
  void connect(FieldRef field, const Tensor& tensor);
  void connect(FieldRef field, ArrayRef<Tensor> tensors);
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  void setInitialValue(FieldRef field, T value) {
    initial(field, equivalent_device_type<T>::value, &value, 1);
  }
  template <class T>
  void setInitialValue(FieldRef field, ArrayRef<T> values) {
    initial(field, equivalent_device_type<T>::value, values.data(), values.size());
  }

  DataStream addHostToDeviceFIFO(StringRef handle, const Type& type, std::size_t n);
  DataStream addDeviceToHostFIFO(StringRef handle, const Type& type, std::size_t n);

  const std::shared_ptr<GraphData>& data() const { return data_; }

 private:
  Tensor constant(const Type& type, const Type& given, ArrayRef<std::size_t> shape, const void* values, std::size_t n,
                  const DebugContext& name);
  void initial(FieldRef field, const Type& type, const void* values, std::size_t n);
  std::shared_ptr<GraphData> data_;
};

}  // namespace poplar
