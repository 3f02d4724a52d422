// The result of a layer or a transform of a chain, as Python sees it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/src/transforms/transform.h"
#include "python_layer.h"

namespace sparsesnn {

// An array of the engine that belongs to NumPy once Python has requested it, and stays in place.
template <class T>
class Asked {
 public:
  Asked() = default;
  Asked(Array<T> array) : data_(array.data()), array_(std::move(array)) {}

  T* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }
  nb::object numpy(std::vector<std::size_t> shape) {
    if (!given_.is_valid()) given_ = to_numpy(array_, std::move(shape));
    return given_;
  }

 private:
  T* data_ = nullptr;
  Array<T> array_;
  nb::object given_;
};

// The lists that a layer or a transform made.
struct OwnLists {
  Asked<std::int64_t> offsets;
  Asked<std::int32_t> n_spikes;
  Array<unsigned char> ids;
  Array<float> values;  // of graded lists
  nb::object ids_given;
};

// The lists of a population over several ranks, sorted for its readers, if its ranks do that.
struct ValueOrder {
  std::shared_ptr<SortedLists> sorted;
  std::shared_ptr<OwnEvents> own;  // this rank's part of `sorted`, if it has one
};

class PyRun {
 public:
  // `call`: the LayerCall that was run; `made`: the engine's output; `watched`: a backward pass may read its lists,
  // which must not change before.
  PyRun(nb::object call, const PyLayer& layer, LayerOutput made, bool watched)
      : call_(std::move(call)),
        watched_(watched),
        saves_(layer.spec.save),
        spec_(layer.spec),
        n_(layer.spec.n),
        n_steps_(static_cast<std::size_t>(layer.n_steps)),
        n_samples_(static_cast<std::size_t>(layer.n_samples)),
        wide_(made.wide),
        dropped_(std::move(made.dropped)),
        state_in_tiles_(made.state_in_tiles),
        made_state_(std::move(made.state)),
        potentials_(std::move(made.potentials)),
        rows_(std::move(made.rows)),
        currents_(std::move(made.currents)),
        fields_(std::move(made.fields)),
        silenced_offsets_(std::move(made.silenced_offsets)),
        silenced_ids_(std::move(made.silenced_ids)) {
    if (spec_.fires) keep(std::move(made.offsets), std::move(made.n_spikes), std::move(made.ids), {});
  }

  // The result of a transform, lists of n neurons.
  PyRun(std::unique_ptr<Transformed> made, int n, int n_samples, bool watched)
      : watched_(watched),
        saves_(true),
        n_(n),
        n_steps_(static_cast<std::size_t>(made->n_steps)),
        n_samples_(static_cast<std::size_t>(n_samples)),
        wide_(made->wide),
        transformed_(std::move(made)) {
    Transformed& from = *transformed_;
    keep(std::move(from.offsets), std::move(from.n_spikes), std::move(from.ids), std::move(from.values));
  }

  // Lists that were given to a chain, of n neurons.
  PyRun(std::shared_ptr<PyLists> lists, int n, int n_steps, int n_samples)
      : watched_(false),
        saves_(false),
        n_(n),
        n_steps_(static_cast<std::size_t>(n_steps)),
        n_samples_(static_cast<std::size_t>(n_samples)),
        n_slots_(lists->ids.size()),
        wide_(n > 65536),
        lists_(std::move(lists)) {}

  // Makes it the run of a population over several ranks; `own`: of this rank's neurons, null where it has none.
  void consists_of(std::shared_ptr<PyRun> own, ValueOrder order) {
    is_whole_ = true;
    own_run_ = std::move(own);
    order_ = std::move(order);
  }
  const ValueOrder& order() const { return order_; }
  bool is_graded() const { return lists_ && lists_->values; }
  std::size_t n_steps() const { return n_steps_; }
  bool is_of_layer() const { return spec_.shape != nullptr; }
  // Null for a layer.
  const Transformed* transformed() const { return transformed_.get(); }
  // The run of this rank's neurons; null: it has none.
  PyRun* own_run() { return is_whole_ ? own_run_.get() : this; }

  nb::object call() const { return call_; }
  // After its backward pass: drops the arrays that only that pass reads; lists may change.
  void forget() {
    if (own_run_) own_run_->forget();
    order_ = {};
    watched_ = false;
    call_ = nb::none();
    transformed_.reset();
    fields_ = {};
    rows_.clear();
    currents_ = {};
    silenced_offsets_ = {};
    silenced_ids_ = {};
    saves_ = false;
  }
  // Null for a readout.
  const std::shared_ptr<PyLists>& lists() const { return lists_; }
  std::size_t n_lists() const { return n_steps_ * n_samples_; }
  std::size_t n_slots() const { return n_slots_; }
  // T, B, N.
  std::vector<std::size_t> shape() const { return {n_steps_, n_samples_, static_cast<std::size_t>(n_)}; }
  const std::int32_t* n_dropped() const { return dropped_.data(); }
  nb::object perhaps_listed() const {
    return lists_ ? sparsesnn::perhaps_listed(*lists_, static_cast<std::size_t>(n_)) : nb::none();
  }

  nb::object offsets() { return seen() ? own_->offsets.numpy({n_lists() + 1}) : nb::none(); }
  nb::object n_spikes() { return seen() ? own_->n_spikes.numpy({n_lists()}) : nb::none(); }
  nb::object ids() {
    if (!seen()) return nb::none();
    if (!own_->ids_given.is_valid()) own_->ids_given = ids_to_numpy(own_->ids, wide_, n_slots_);
    return own_->ids_given;
  }
  // A value for each entry: that of graded lists, else 1 for spikes and 0 for near-spikes.
  nb::object values() {
    if (!lists_) return nb::none();
    if (!values_) {
      values_ = Array<float>(n_slots_);
      const Lists lists = lists_->view(wide_);
      if (lists.values) std::copy_n(lists.values, n_slots_, values_.data());
      for (std::size_t i = 0; !lists.values && i < n_lists(); ++i) {
        const std::int64_t near = lists.offsets[i] + lists.n_spikes[i];
        std::fill(values_.data() + lists.offsets[i], values_.data() + near, 1.0f);
        std::fill(values_.data() + near, values_.data() + lists.offsets[i + 1], 0.0f);
      }
    }
    return values_.numpy({n_slots_});
  }
  nb::object dropped() { return dropped_.numpy({n_lists()}); }
  const float* potentials_data() const { return potentials_.data(); }
  nb::object potentials() { return potentials_.numpy(shape()); }
  nb::list state() {
    for (Array<float>& one : std::exchange(made_state_, {}))
      state_.emplace_back(state_in_tiles_ ? state_from_tiles(spec_, one, static_cast<int>(n_samples_))
                                          : std::move(one));
    nb::list found;
    for (Asked<float>& one : state_) found.append(one.numpy({n_samples_, static_cast<std::size_t>(n_)}));
    return found;
  }

  // The arrays that a backward pass of `layer` reads. Throws if Python has changed the lists.
  LayerSaved saved(const PyLayer& layer) const {
    if (layer.spec.shape != spec_.shape || layer.spec.n != n_ || !saves_ ||
        static_cast<std::size_t>(layer.n_steps) != n_steps_ || static_cast<std::size_t>(layer.n_samples) != n_samples_)
      throw InputError("ShapeError", "backward: this layer's run saved nothing, or is a run of another layer");
    LayerSaved found;
    found.fields = fields_.data();
    found.silenced_offsets = silenced_offsets_.data();
    found.silenced_ids = silenced_ids_.data();
    found.potentials = potentials_.data();
    for (std::size_t s = 0; s < rows_.size(); ++s) found.rows.state[s + 1] = rows_[s].data();
    found.rows.current = currents_.data();
    if (lists_) found.lists = checked_lists(*lists_, n_, static_cast<int>(n_samples_), nullptr, "output");
    return found;
  }

 private:
  void keep(Array<std::int64_t> offsets, Array<std::int32_t> n_spikes, Array<unsigned char> ids, Array<float> values) {
    n_slots_ = static_cast<std::size_t>(offsets[n_lists()]);
    own_ = std::make_shared<OwnLists>(
        OwnLists{std::move(offsets), std::move(n_spikes), std::move(ids), std::move(values), {}});
    const std::size_t n_offsets = n_lists() + 1, n = n_lists();
    const auto dtype = wide_ ? nb::dtype<std::int32_t>() : nb::dtype<std::uint16_t>();
    std::optional<In<float>> graded;
    if (own_->values) graded = In<float>(own_->values.data(), 1, &n_slots_, nb::handle());
    lists_ = std::make_shared<PyLists>(In<std::int64_t>(own_->offsets.data(), 1, &n_offsets, nb::handle()),
                                       AnyIn(own_->ids.data(), 1, &n_slots_, {}, nullptr, dtype),
                                       In<std::int32_t>(own_->n_spikes.data(), 1, &n, nb::handle()), graded);
    lists_->memory = own_;
    lists_->checked_for = n_;
    lists_->untouched = true;  // for as long as Python has not seen them
  }

  // Before Python gets lists to see, of which there may be none.
  bool seen() {
    if (own_) lists_->show(watched_);
    return own_ != nullptr;
  }

  std::shared_ptr<PyRun> own_run_;
  bool is_whole_ = false;
  ValueOrder order_;
  nb::object call_ = nb::none();
  bool watched_, saves_;
  LayerSpec spec_;
  int n_;
  std::size_t n_steps_, n_samples_, n_slots_ = 0;
  bool wide_;
  std::unique_ptr<Transformed> transformed_;  // null of a layer
  std::shared_ptr<OwnLists> own_;
  std::shared_ptr<PyLists> lists_;  // the same for later calls
  Asked<std::int32_t> dropped_;
  bool state_in_tiles_ = false;
  std::vector<Array<float>> made_state_;
  std::vector<Asked<float>> state_;
  Asked<float> values_, potentials_;
  std::vector<Array<float>> rows_;  // of a readout, for gradients of its parameters
  Array<float> currents_;
  Array<float> fields_;
  Array<std::int64_t> silenced_offsets_;
  Array<std::uint32_t> silenced_ids_;
};

}  // namespace sparsesnn
