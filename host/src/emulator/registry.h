// Vertex classes by name: the data that popc writes in addition to a codelet's code. On a host C++ cannot look up
// fields by name, so each codelet lists its fields in SPARSESNN_VERTEX (codelets/ipu/vertex.h); a missing field is
// noticed, because the listed fields must fill the object.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "poplar/Types.hpp"
#include "poplar/Vertex.hpp"

namespace sparsesnn::emulator {

enum class Direction { input, output, in_out, state };

inline const char* name_of(Direction d) {
  return d == Direction::input    ? "Input"
         : d == Direction::output ? "Output"
         : d == Direction::in_out ? "InOut"
                                  : "state";
}

struct Field {
  std::string name;
  Direction direction;
  poplar::Type type;
  int levels;  // 0 a number, 1 a vector, 2 a list of regions
  unsigned min_align;
  std::size_t offset, size;
  std::size_t device_bytes;  // in the vertex's state on the device: pointers of 4 bytes, counts if the layout has them
};

struct VertexClass {
  std::string name;
  std::size_t size, align;
  unsigned n_workers;
  std::vector<Field> fields;
  bool (*compute)(void* object, unsigned worker);

  const Field* find(const std::string& field) const {
    for (const Field& f : fields)
      if (f.name == field) return &f;
    return nullptr;
  }
};

const VertexClass* find_class(const std::string& name);
std::vector<std::string> class_names();
// Throws std::logic_error if fields do not fill the object, or the name is taken.
bool add_class(VertexClass vertex_class);

// ---- properties of a field's type
// -------------------------------------------------------------------------------------

template <class T>
inline constexpr bool is_number = std::is_arithmetic_v<T> || std::is_same_v<T, half>;

template <class T>
struct FieldType {  // a plain number: vertex state
  static constexpr Direction direction = Direction::state;
  using Element = T;
  static constexpr int levels = 0;
  static constexpr unsigned min_align = alignof(T);
  static constexpr std::size_t device_bytes = sizeof(T);
};

template <class T, poplar::VectorLayout layout, unsigned align, bool interleaved>
struct FieldType<poplar::Vector<T, layout, align, interleaved>> {
  static constexpr bool list = !is_number<T>;
  static constexpr Direction direction = FieldType<T>::direction;
  using Element = typename FieldType<T>::Element;
  static constexpr int levels = 1 + FieldType<T>::levels;
  static constexpr unsigned min_align = list ? FieldType<T>::min_align : align;
  static constexpr std::size_t device_bytes = layout == poplar::VectorLayout::SPAN ? 8 : 4;
};

template <class T, Direction d>
struct Connected {
  static constexpr Direction direction = d;
  using Element = T;
  static constexpr int levels = 0;
  static constexpr unsigned min_align = alignof(T);
  static constexpr std::size_t device_bytes = 4;
};
template <class T, poplar::VectorLayout layout, unsigned align, bool interleaved, Direction d>
struct Connected<poplar::Vector<T, layout, align, interleaved>, d> {
  static_assert(is_number<T>, "a connected vector holds numbers");
  static constexpr Direction direction = d;
  using Element = T;
  static constexpr int levels = 1;
  static constexpr unsigned min_align = align;
  static constexpr std::size_t device_bytes = layout == poplar::VectorLayout::SPAN ? 8 : 4;
};
template <class T>
struct FieldType<poplar::Input<T>> : Connected<T, Direction::input> {};
template <class T>
struct FieldType<poplar::Output<T>> : Connected<T, Direction::output> {};
template <class T>
struct FieldType<poplar::InOut<T>> : Connected<T, Direction::in_out> {};

template <class V, class F>
Field describe(const char* name, F V::* member) {
  using Traits = FieldType<std::remove_const_t<F>>;
  static_assert(Traits::levels <= 2, "Poplar has at most two levels of Vector");
  alignas(V) static unsigned char storage[sizeof(V)];
  V* object = reinterpret_cast<V*>(storage);
  const auto offset = static_cast<std::size_t>(reinterpret_cast<unsigned char*>(&(object->*member)) - storage);
  return {name,           Traits::direction,   poplar::equivalent_device_type<typename Traits::Element>::value,
          Traits::levels, Traits::min_align,   offset,
          sizeof(F),      Traits::device_bytes};
}

template <class V>
bool register_vertex(const char* name, std::vector<Field> fields) {
  constexpr bool multi = std::is_base_of_v<poplar::MultiVertex, V>;
  static_assert(multi || std::is_base_of_v<poplar::Vertex, V>, "a vertex derives from Vertex or MultiVertex");
  VertexClass c{name,   sizeof(V), alignof(V), multi ? poplar::MultiVertex::numWorkers() : 1u, std::move(fields),
                nullptr};
  c.compute = [](void* object, unsigned worker) {
    if constexpr (multi) {
      return static_cast<V*>(object)->compute(worker);
    } else {
      (void)worker;
      return static_cast<V*>(object)->compute();
    }
  };
  return add_class(std::move(c));
}

}  // namespace sparsesnn::emulator
