// Fake PopART, for tests: type and shape of a tensor.
#pragma once

#include <utility>

#include "datatype.hpp"
#include "names.hpp"

namespace popart {

class TensorInfo {
 public:
  TensorInfo() = default;
  TensorInfo(DataType type, const Shape& shape) : type_(type), shape_(shape) {}
  void set(DataType type, const Shape& shape) { *this = TensorInfo(type, shape); }

  DataType dataType() const { return type_; }
  std::string data_type() const {
    return type_ == DataType::FLOAT ? "FLOAT" : type_ == DataType::INT32 ? "INT32" : "UNDEFINED";
  }
  const Shape& shape() const { return shape_; }
  std::vector<std::size_t> shape_szt() const { return {shape_.begin(), shape_.end()}; }
  int rank() const { return static_cast<int>(shape_.size()); }
  std::int64_t nelms() const {
    std::int64_t n = 1;
    for (const std::int64_t dim : shape_) n *= dim;
    return n;
  }
  bool operator==(const TensorInfo& other) const { return type_ == other.type_ && shape_ == other.shape_; }
  bool operator!=(const TensorInfo& other) const { return !(*this == other); }

 private:
  DataType type_ = DataType::UNDEFINED;
  Shape shape_;
};

}  // namespace popart
