// The table of the compiled shapes of neurons (codelets/neuron.h), and which of them covers a model.
//
// C++17 and no library, because the Poplar SDK's host compiler reads this too.
#pragma once

#include <algorithm>

#include "codelets/neuron.h"
#include "shapes.h"

namespace sparsesnn {

// Appends the names of a matrix's entries, such as A01, or of a column's, such as B1; bits: which of them exist.
inline void name_matrix(std::vector<std::string>& names, char name, int n, unsigned bits) {
  for (int r = 0; r < n; ++r)
    for (int k = 0; k < n; ++k)
      if (base::has(bits, r * n + k)) names.push_back(std::string(1, name) + std::to_string(r) + std::to_string(k));
}
inline void name_column(std::vector<std::string>& names, char name, int n, unsigned bits) {
  for (int r = 0; r < n; ++r)
    if (base::has(bits, r)) names.push_back(std::string(1, name) + std::to_string(r));
}

template <class M>
NeuronShape describe_shape() {
  static_assert(M::n_states <= max_states && M::n_entries <= max_entries);
  constexpr int n = M::n_states;
  std::vector<std::string> entries, ones;
  name_matrix(entries, 'A', n, M::A);
  name_matrix(entries, 'R', n, M::R);
  name_column(entries, 'u', n, M::u);
  name_column(entries, 'r', n, M::f);
  name_column(entries, 'f', n, M::f);
  name_column(entries, 'B', n, M::B);
  name_column(entries, 'c', n, M::c);
  if (M::rows == base::Rows::either) entries.emplace_back("order");
  if (M::may_fire) entries.emplace_back("threshold");
  name_column(ones, 'B', n, M::one);
  return {M::name,
          n,
          M::may_fire,
          M::may_read_out,
          M::rows != base::Rows::at_once || n == 1,
          M::rows != base::Rows::in_order || n == 1,
          entries,
          ones,
          M::threshold,
          M::adds_q,
          M::reads_spikes,
          M::feeds_spikes};
}

inline bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// An entry of B that is 1 may also stand in an array.
inline bool covers(const NeuronShape& shape, const NeuronStructure& model) {
  if (shape.n_states != model.n_states || !(model.fires ? shape.may_fire : shape.may_read_out) ||
      !(model.in_order ? shape.in_order : shape.at_once))
    return false;
  for (const std::string& one : shape.ones)
    if (!holds(model.ones, one)) return false;
  return std::all_of(model.entries.begin(), model.entries.end(), [&](const std::string& name) {
    if (holds(shape.entries, name) || holds(shape.ones, name)) return true;
    return name[0] == 'r' && holds(shape.entries, "u" + name.substr(1));  // u = r without f
  });
}

// All of them, in the order of the list.
inline std::vector<NeuronShape> describe_shapes() {
  std::vector<NeuronShape> found;
  base::Shapes::each([&](int, auto shape) { found.push_back(describe_shape<decltype(shape)>()); });
  return found;
}

}  // namespace sparsesnn
