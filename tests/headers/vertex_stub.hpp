// Declarations in the place of Poplar's runtime headers, as a codelet sees them; see poplar_stub.hpp. `size()` exists
// for SPAN and SHORT_SPAN alone, an Input is const, vertex classes are never constructed here.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "poplar_stub.hpp"

using half = _Float16;

namespace poplar {

template <class T, VectorLayout layout = VectorLayout::SPAN, unsigned min_align = alignof(T), bool interleaved = false>
struct Vector;

namespace stub {

template <class T, VectorLayout layout>
struct View {
  T& operator[](std::size_t) const;
  T* data() const;
  template <VectorLayout l = layout, class = std::enable_if_t<l == VectorLayout::SPAN || l == VectorLayout::SHORT_SPAN>>
  unsigned size() const;
  template <VectorLayout l = layout, class = std::enable_if_t<l == VectorLayout::SPAN || l == VectorLayout::SHORT_SPAN>>
  T* begin() const;
  template <VectorLayout l = layout, class = std::enable_if_t<l == VectorLayout::SPAN || l == VectorLayout::SHORT_SPAN>>
  T* end() const;
};

template <class T>
struct Scalar {
  T& operator*() const;
  T* operator->() const;
  operator T&() const;
};

}  // namespace stub

template <class T>
struct Input : stub::Scalar<const T> {};
template <class T>
struct Output : stub::Scalar<T> {
  Output& operator=(const T&);
};
template <class T>
struct InOut : stub::Scalar<T> {
  InOut& operator=(const T&);
};
template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
struct Input<Vector<T, layout, min_align, interleaved>> : stub::View<const T, layout> {};
template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
struct Output<Vector<T, layout, min_align, interleaved>> : stub::View<T, layout> {};
template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
struct InOut<Vector<T, layout, min_align, interleaved>> : stub::View<T, layout> {};
template <class T, VectorLayout layout, unsigned min_align, bool interleaved>
struct Vector : stub::View<T, layout> {};

class Vertex {};
class SupervisorVertex {};
class MultiVertex {
 public:
  static constexpr unsigned numWorkers() { return 6; }
};

namespace stub {

template <class V, class... Worker>
using Computed = decltype(std::declval<V&>().compute(std::declval<Worker>()...));
template <class V, class = void, class... Worker>
struct Computes : std::false_type {};
template <class V, class... Worker>
struct Computes<V, std::void_t<Computed<V, Worker...>>, Worker...> : std::is_same<Computed<V, Worker...>, bool> {};

// What popc asks of a vertex: a MultiVertex computes for each worker, any other vertex once. check.py states it for
// all.
template <class V>
constexpr bool is_vertex =
    std::is_base_of_v<MultiVertex, V>
        ? Computes<V, void, unsigned>::value && !Computes<V, void>::value
        : std::is_base_of_v<Vertex, V> && Computes<V, void>::value && !Computes<V, void, unsigned>::value;

}  // namespace stub

}  // namespace poplar
