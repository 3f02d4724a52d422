// Part of the emulated machine: a tensor is a shape and, in the order of its elements, pieces of variables.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "Types.hpp"

namespace poplar {

class GraphData;

// Elements [begin, end) of one variable.
struct Piece {
  unsigned variable;
  std::size_t begin, end;
};

class Tensor {
 public:
  Tensor() : type_(FLOAT) {}
  Tensor(Type type, std::vector<std::size_t> shape, std::vector<Piece> pieces)
      : type_(type), shape_(std::move(shape)), pieces_(std::move(pieces)) {}

  Type elementType() const { return type_; }
  std::vector<std::size_t> shape() const { return shape_; }
  unsigned rank() const { return static_cast<unsigned>(shape_.size()); }
  std::size_t dim(unsigned k) const { return shape_.at(k); }
  std::size_t numElements() const;

  Tensor slice(std::size_t begin, std::size_t end, unsigned dimension = 0) const;
  Tensor reshape(ArrayRef<std::size_t> shape) const;
  Tensor flatten() const { return reshape({numElements()}); }
  Tensor reinterpret(const Type& type) const;

  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  Type type_;
  std::vector<std::size_t> shape_;
  std::vector<Piece> pieces_;
};

Tensor concat(ArrayRef<Tensor> tensors, unsigned dimension = 0);

}  // namespace poplar
