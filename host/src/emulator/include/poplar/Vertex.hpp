// Part of the emulated machine: the interface of a codelet. Every field is a pointer, vectors with a count; the
// emulator fills them in before it calls compute. `size()` exists for SPAN only, and Input is const, both as on the
// device.
#pragma once

#include <cstddef>
#include <type_traits>

#include "VectorLayout.hpp"

namespace poplar {

template <class T, VectorLayout layout = VectorLayout::SPAN, unsigned min_align = alignof(T), bool interleaved = false>
class Vector;
template <class T>
class Input;
template <class T>
class Output;
template <class T>
class InOut;

namespace emulated {

// A vector's data, by kind of access.
template <class T, VectorLayout layout>
class View {
 public:
  T& operator[](std::size_t i) const { return data_[i]; }
  T* data() const { return data_; }
  T* begin() const {
    static_assert(layout == VectorLayout::SPAN, "begin() needs VectorLayout::SPAN");
    return data_;
  }
  T* end() const {
    static_assert(layout == VectorLayout::SPAN, "end() needs VectorLayout::SPAN");
    return data_ + n_;
  }
  std::size_t size() const {
    static_assert(layout == VectorLayout::SPAN, "size() needs VectorLayout::SPAN");
    return n_;
  }

 private:
  T* data_;
  std::size_t n_;
};

template <class T>
class Scalar {
 public:
  T& operator*() const { return *data_; }
  T* operator->() const { return data_; }
  operator T&() const { return *data_; }

 private:
  T* data_;
  std::size_t n_;
};

}  // namespace emulated

template <class T>
class Input : public emulated::Scalar<const T> {};
template <class T>
class Output : public emulated::Scalar<T> {
 public:
  Output& operator=(const T& value) {
    **this = value;
    return *this;
  }
};
template <class T>
class InOut : public emulated::Scalar<T> {
 public:
  InOut& operator=(const T& value) {
    **this = value;
    return *this;
  }
};

template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
class Input<Vector<T, layout, min_align, interleaved>> : public emulated::View<const T, layout> {};
template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
class Output<Vector<T, layout, min_align, interleaved>> : public emulated::View<T, layout> {};
template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
class InOut<Vector<T, layout, min_align, interleaved>> : public emulated::View<T, layout> {};

// Vertex state that the host sets (T a number), or a list of regions (T a field).
template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
class Vector : public emulated::View<T, layout> {};

class VertexBase {
 protected:
  VertexBase() = default;
};

class Vertex : public VertexBase {};

class MultiVertex : public VertexBase {
 public:
  static constexpr unsigned numWorkers() { return 6; }
};

}  // namespace poplar
