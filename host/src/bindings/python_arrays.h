// NumPy arrays as arguments and results of the engine's bindings.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/src/cpu/engine.h"
#include "host/src/machine/fingerprint.h"

namespace sparsesnn {

namespace nb = nanobind;

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
using AnyIn = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

inline std::string shape_of(const std::vector<std::size_t>& shape) {
  std::string text = "[";
  for (std::size_t k = 0; k < shape.size(); ++k) text += (k ? ", " : "") + std::to_string(shape[k]);
  return text + "]";
}

template <class A>
void check_shape(const A& array, const std::vector<std::size_t>& want, const char* name) {
  std::vector<std::size_t> got;
  for (std::size_t k = 0; k < array.ndim(); ++k) got.push_back(array.shape(k));
  if (got != want)
    throw InputError("ShapeError", std::string(name) + " has shape " + shape_of(got) + "; give " + shape_of(want));
}

// A float32 array of the given shape, or null.
inline const float* floats(const std::optional<In<float>>& array, const std::vector<std::size_t>& shape,
                           const char* name) {
  if (!array) return nullptr;
  check_shape(*array, shape, name);
  return array->data();
}

// Lists as Python holds them; valid during the call. NumPy and PyTorch can write to their memory at any time, so a
// backward pass checks that they are still the lists that the forward pass checked and read.
struct PyLists {
  In<std::int64_t> offsets;
  AnyIn ids;
  In<std::int32_t> n_spikes;
  std::optional<In<float>> values;  // for graded lists
  bool constant = false;            // one list for each sample, the same at all steps
  int checked_for = 0;              // number of neurons for which the ids were checked; 0: unchecked
  bool untouched = false;           // Python has had no access since they were made or checked
  std::array<std::uint64_t, 4> fingerprints{};
  std::shared_ptr<void> memory;  // owner of arrays that no Python object holds

  PyLists(In<std::int64_t> o, AnyIn i, In<std::int32_t> n, std::optional<In<float>> v = std::nullopt,
          bool is_constant = false)
      : offsets(std::move(o)), ids(std::move(i)), n_spikes(std::move(n)), values(std::move(v)), constant(is_constant) {}

  std::array<std::uint64_t, 4> fingerprints_now() const {
    return {fingerprint(offsets.data(), offsets.nbytes()), fingerprint(ids.data(), ids.nbytes()),
            fingerprint(n_spikes.data(), n_spikes.nbytes()),
            values ? fingerprint(values->data(), values->nbytes()) : 0};
  }

  Lists view(bool wide) const {
    return {offsets.data(), ids.data(), n_spikes.data(), wide, values ? values->data() : nullptr};
  }

  // Records that the lists are valid for n_neurons.
  void hold(int n_neurons) {
    checked_for = n_neurons;
    if (!untouched) fingerprints = fingerprints_now();
  }
  // Before Python gets access to untouched lists; `watched`: a pass may read them later.
  void show(bool watched) {
    if (!std::exchange(untouched, false)) return;
    hold(watched ? checked_for : 0);
  }

  void check_held(const char* name) const {
    if (untouched) return;
    const std::array<std::uint64_t, 4> now = fingerprints_now();
    constexpr const char* arrays[] = {"offsets", "ids", "n_spikes", "values"};
    for (std::size_t k = 0; k < now.size(); ++k)
      if (now[k] != fingerprints[k])
        throw InputError(
            "SpikeListError",
            std::string(name) + ": " + arrays[k] +
                " of the spike lists changed after the forward pass; the backward pass needs the lists that "
                "the forward pass read; write new lists to other arrays, or wait until backward() is done");
  }
};

// The first call checks the lists; later calls check that they are unchanged.
inline Lists checked_lists(PyLists& from, int n_neurons, int n_samples, int* n_steps, const char* name) {
  const std::size_t n_lists = from.n_spikes.size();
  if (from.offsets.ndim() != 1 || from.ids.ndim() != 1 || from.n_spikes.ndim() != 1 ||
      from.offsets.size() != n_lists + 1 || (n_samples ? n_lists % n_samples : n_lists) != 0)
    throw InputError("ShapeError", std::string(name) + ": " + std::to_string(from.offsets.size()) + " offsets and " +
                                       std::to_string(n_lists) + " n_spikes do not make lists for " +
                                       std::to_string(n_samples) + " samples");
  if (n_steps) *n_steps = n_samples ? static_cast<int>(n_lists / n_samples) : 0;
  if (from.checked_for == n_neurons) {
    from.check_held(name);
    return from.view(n_neurons > 65536);
  }
  const bool wide = n_neurons > 65536;
  if (wide ? from.ids.dtype() != nb::dtype<std::int32_t>() : from.ids.dtype() != nb::dtype<std::uint16_t>())
    throw InputError("ShapeError", std::string(name) + ": ids must be " + (wide ? "int32" : "uint16") + " for " +
                                       std::to_string(n_neurons) + " neurons");
  if (from.values && (from.values->ndim() != 1 || from.values->size() != from.ids.size()))
    throw InputError("ShapeError", std::string(name) + ": " + std::to_string(from.values->size()) + " values for " +
                                       std::to_string(from.ids.size()) + " ids; give one for each");
  const Lists lists = from.view(wide);
  check_lists(lists, static_cast<std::int64_t>(n_lists), static_cast<std::int64_t>(from.ids.size()), n_neurons, name);
  from.hold(n_neurons);
  return lists;
}

// Hands the memory of `array` to a NumPy array.
template <class T>
nb::object to_numpy(Array<T>& array, std::vector<std::size_t> shape) {
  if (!array) return nb::none();
  T* data = array.release();
  nb::capsule owner(data, [](void* p) noexcept { release(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner));
}

// bool[n], true for neurons that may be in any of the lists: all true once nine in ten have been seen. To check whether
// each id is new takes twice as long as to mark it.
inline nb::object perhaps_listed(const PyLists& lists, std::size_t n) {
  const AnyIn& ids = lists.ids;
  Array<bool> listed = Array<bool>::zeros(n);
  const auto mark = [&](auto* id) {
    const std::size_t piece = std::max<std::size_t>(4096, 4 * n);
    for (std::size_t from = 0, to; from < ids.size(); from = to) {
      to = std::min(ids.size(), from + piece);
      bool good = true;
      for (std::size_t j = from; j < to; ++j) {
        const std::size_t neuron = static_cast<std::size_t>(id[j]);
        good = good && neuron < n;
        listed[good ? neuron : 0] = true;
      }
      if (!good) throw InputError("SpikeListError", "perhaps_listed: an id is too large");
      if (10 * static_cast<std::size_t>(std::count(listed.data(), listed.data() + n, true)) < 9 * n) continue;
      std::fill_n(listed.data(), n, true);
      return;
    }
  };
  if (ids.dtype() == nb::dtype<std::uint16_t>())
    mark(static_cast<const std::uint16_t*>(ids.data()));
  else if (ids.dtype() == nb::dtype<std::int32_t>())
    mark(static_cast<const std::int32_t*>(ids.data()));
  else
    throw InputError("ShapeError", "perhaps_listed: ids must be uint16 or int32");
  return to_numpy(listed, {n});
}

inline nb::object ids_to_numpy(Array<unsigned char>& ids, bool wide, std::size_t n) {
  if (!ids) return nb::none();
  void* data = ids.release();
  nb::capsule owner(data, [](void* p) noexcept { release(p); });
  if (wide) return nb::cast(nb::ndarray<nb::numpy, std::int32_t>(data, 1, &n, owner));
  return nb::cast(nb::ndarray<nb::numpy, std::uint16_t>(data, 1, &n, owner));
}

// Lists that the engine made: the arrays that they all have.
template <class Made>
nb::dict lists_to_numpy(Made& made, bool wide, std::size_t n_lists) {
  const std::size_t n_slots = made.offsets ? static_cast<std::size_t>(made.offsets[n_lists]) : 0;
  nb::dict result;
  result["ids"] = ids_to_numpy(made.ids, wide, n_slots);
  result["offsets"] = to_numpy(made.offsets, {n_lists + 1});
  result["n_spikes"] = to_numpy(made.n_spikes, {n_lists});
  result["values"] = to_numpy(made.values, {n_slots});
  return result;
}

}  // namespace sparsesnn
