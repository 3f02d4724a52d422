#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "host/src/maps/windows.h"
#include "host/src/ranks/chain_shards.h"
#include "host/src/training/group_tree.h"

namespace sparsesnn {
namespace {

// Columns first..last - 1 of rows of n numbers.
Array<float> columns(const float* rows, std::size_t n_rows, std::size_t n, std::size_t first, std::size_t last) {
  Array<float> out(n_rows * (last - first));
  for (std::size_t i = 0; i < n_rows; ++i)
    std::copy(rows + i * n + first, rows + i * n + last, out.data() + i * (last - first));
  return out;
}

Lists lists_of(const PyRun& run) { return run.lists()->view(run.shape()[2] > 65536); }

}  // namespace

std::optional<ListOrder> list_order(nb::handle python) {
  if (python.is_none()) return std::nullopt;
  const auto [delay, n_rows, n_groups] = nb::cast<std::tuple<int, int, int>>(python);
  if (delay < 0 || n_rows < group_samples || n_groups < 1)
    throw InputError("ShapeError", "order: give a delay, and rows and groups of a chunk");
  return ListOrder{delay, {n_rows, n_groups}};
}

ChainShards::ChainShards(nb::object python)
    : python_(std::move(python)),
      rank_(nb::cast<std::size_t>(python_.attr("rank"))),
      first_(nb::cast<std::vector<First>>(python_.attr("first"))),
      inputs_(nb::cast<std::vector<First>>(python_.attr("inputs"))),
      folds_(nb::cast<std::vector<std::vector<int>>>(python_.attr("folds"))) {
  for (nb::handle order : python_.attr("orders")) orders_.push_back(list_order(order));
  for (const std::vector<First>& of : {first_, inputs_})
    for (const First& first : of)
      if (rank_ + 2 > first.size() || !std::is_sorted(first.begin(), first.end()))
        throw InputError("ShapeError", "ChainShards: give first neurons of all ranks, which ascend");
}

std::vector<Message> ChainShards::messages_of(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own,
                                              Array<unsigned char> message,
                                              std::vector<In<unsigned char>>& held) const {
  const std::size_t n_bytes = message.size();
  const std::int64_t n_lists = static_cast<std::int64_t>(layer.n_steps) * layer.n_samples;
  nb::object sent = to_numpy(message, {n_bytes});
  const nb::object got = python_.attr("lists")(k, own, layer.n_samples, n_lists, std::move(sent),
                                               layer.spec.capacity > 0, layer.spec.save && orders_[k]);
  std::vector<Message> messages;
  for (nb::handle one : nb::cast<nb::list>(got)) {
    held.push_back(nb::cast<In<unsigned char>>(one));
    messages.push_back({held.back().data(), held.back().size()});
  }
  return messages;
}

MergedLists ChainShards::whole_lists(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own,
                                     ValueOrder& order) const {
  const std::vector<std::uint32_t>& first = first_[k];
  const std::int64_t n_lists = static_cast<std::int64_t>(layer.n_steps) * layer.n_samples;
  const bool limited = layer.spec.capacity > 0, is_first = first[rank_] == 0;
  const std::optional<ListOrder> sorts = layer.spec.save ? orders_[k] : std::nullopt;
  Array<unsigned char> message;
  if (own) {
    const nb::gil_scoped_release release;
    const Lists lists = lists_of(*own);
    const std::uint32_t n = first[rank_ + 1] - first[rank_];
    if (sorts)
      order.own = std::make_shared<OwnEvents>(lists, static_cast<int>(n), layer.n_steps, layer.n_samples, *sorts);
    message = shard_message(lists, n_lists, n, limited && is_first ? own->n_dropped() : nullptr, order.own.get());
  }
  std::vector<In<unsigned char>> held;
  std::vector<Message> messages = messages_of(k, layer, own, std::move(message), held);
  if (owns_all(k)) return {};
  nb::gil_scoped_release release;
  if (sorts) {
    order.sorted = std::make_shared<SortedLists>(messages, first, layer.n_steps, layer.n_samples, *sorts);
    for (std::size_t r = 0; r < messages.size(); ++r) {
      const std::size_t end = order.sorted->ends()[r];
      messages[r] = {messages[r].data + end, messages[r].size - end};
    }
  }
  return merge_messages(messages, n_lists, limited, first);
}

Array<float> ChainShards::whole_potentials(std::size_t k, const PyLayer& layer,
                                           const std::shared_ptr<PyRun>& own) const {
  const std::vector<std::uint32_t>& first = first_[k];
  const std::size_t n_rows = static_cast<std::size_t>(layer.n_steps) * layer.n_samples, n = first.back();
  std::vector<In<float>> held;
  for (nb::handle part : nb::cast<nb::list>(python_.attr("potentials")(k, own, n_rows)))
    held.push_back(nb::cast<In<float>>(part));
  if (owns_all(k)) return {};
  Array<float> potentials(n_rows * n);
  for (std::size_t r = 0; r + 1 < first.size(); ++r) {
    const std::size_t n_here = first[r + 1] - first[r];
    if (held[r].size() != n_rows * n_here)
      throw InputError("ShapeError", "ChainShards: got " + std::to_string(held[r].size()) + " potentials of rank " +
                                         std::to_string(r) + ", not " + std::to_string(n_rows * n_here));
    for (std::size_t i = 0; i < n_rows; ++i)
      std::copy_n(held[r].data() + i * n_here, n_here, potentials.data() + i * n + first[r]);
  }
  return potentials;
}

std::shared_ptr<PyRun> ChainShards::whole(std::size_t k, const PyLayer& layer, std::shared_ptr<PyRun> own,
                                          bool watched) const {
  LayerOutput made;
  MergedLists lists;
  ValueOrder order;
  if (layer.spec.fires) lists = whole_lists(k, layer, own, order);
  if (!layer.spec.fires || layer.gives_potentials) made.potentials = whole_potentials(k, layer, own);
  if (owns_all(k)) return own;
  made.offsets = std::move(lists.offsets);
  made.ids = std::move(lists.ids);
  made.n_spikes = std::move(lists.n_spikes);
  made.dropped = std::move(lists.dropped);
  made.wide = lists.wide;
  PyLayer all = layer;
  all.spec.n = static_cast<int>(first_[k].back());
  auto found = std::make_shared<PyRun>(nb::none(), all, std::move(made), watched);
  found->consists_of(std::move(own), std::move(order));
  return found;
}

std::size_t ChainShards::n_own(const First& first, PyRun& whole) const {
  if (whole.is_of_layer()) return whole.own_run() ? whole.own_run()->n_slots() : 0;
  const Lists lists = lists_of(whole);
  return with_ids(lists.wide, lists.ids, [&](auto* ids) {
    return static_cast<std::size_t>(
        std::count_if(ids, ids + whole.n_slots(), [&](std::uint32_t id) { return owns(first, id); }));
  });
}

Array<float> ChainShards::own_columns(const First& first, PyRun& whole, const OutputGrads& all) const {
  const std::size_t n_rows = all.step ? whole.n_lists() : whole.shape()[1];
  return columns(all.data, n_rows, first.back(), first[rank_], first[rank_ + 1]);
}

Array<float> ChainShards::own_part(const First& first, PyRun& whole, const OutputGrads& all) const {
  // Own entries stand in the order of a rank's own lists.
  const Lists lists = lists_of(whole);
  Array<float> found(n_own(first, whole));
  with_ids(lists.wide, lists.ids, [&](auto* ids) {
    for (std::size_t j = 0, end = 0; j < whole.n_slots(); ++j)
      if (owns(first, ids[j])) found[end++] = all.data[j];
  });
  return found;
}

Array<float> ChainShards::all_entries(const First& first, const PyRun& whole, const float* own) const {
  const Lists lists = lists_of(whole);
  Array<float> found(whole.n_slots());
  with_ids(lists.wide, lists.ids, [&](auto* ids) {
    for (std::size_t j = 0; j < whole.n_slots(); ++j) found[j] = owns(first, ids[j]) ? *own++ : 0.0f;
  });
  return found;
}

nb::list ChainShards::parts_for_owners(Read& read) const {
  const PyRun& whole = read.lists;
  const std::shared_ptr<SortedLists>& sorted = whole.order().sorted;
  const std::size_t n_given = read.by_event ? sorted->size() : whole.n_slots();
  const std::size_t n_rows = n_given ? read.d_value.size() / n_given : 0;
  const auto n_lists = static_cast<std::int64_t>(whole.n_lists());
  nb::list parts;
  if (sorted) {
    if (!read.by_event)
      read.d_value =
          sorted->from_slots(lists_of(whole), static_cast<std::int64_t>(whole.n_slots()), read.d_value.data(), n_rows);
    const nb::object all = to_numpy(read.d_value, {n_rows, sorted->size()});
    for (std::size_t r = 0; r + 1 < read.first.size(); ++r)
      parts.append(all[nb::make_tuple(
          nb::ellipsis(), nb::slice(nb::cast(sorted->edges()[r]), nb::cast(sorted->edges()[r + 1]), nb::none()))]);
    return parts;
  }
  std::vector<Array<float>> split;
  {
    const nb::gil_scoped_release release;
    split = split_values(lists_of(whole), n_lists, read.d_value.data(), static_cast<int>(n_rows), read.first);
  }
  for (Array<float>& part : split) parts.append(to_numpy(part, {n_rows, n_rows ? part.size() / n_rows : 0}));
  return parts;
}

std::vector<Array<float>> ChainShards::to_owners(std::size_t k, std::vector<Read> reads) const {
  nb::list given;
  std::vector<std::size_t> n_values;
  for (Read& read : reads) {
    const std::shared_ptr<OwnEvents>& events = read.lists.order().own;
    n_values.push_back(events ? events->size() : n_own(read.first, read.lists));
    given.append(first_[k][rank_] == first_[k][rank_ + 1] ? nb::none() : nb::object(parts_for_owners(read)));
  }
  const nb::list got = nb::cast<nb::list>(python_.attr("to_owners")(k, given, n_values));
  std::vector<In<float>> held;
  std::vector<std::vector<const float*>> rows(reads.size());
  for (std::size_t j = 0; j < reads.size(); ++j)
    for (nb::handle block : nb::cast<nb::list>(got[j])) {
      held.push_back(nb::cast<In<float>>(block));
      const In<float>& sums = held.back();
      for (std::size_t row = 0; n_values[j] && row < sums.size() / n_values[j]; ++row)
        rows[j].push_back(sums.data() + row * n_values[j]);
    }
  std::vector<Array<float>> found;
  const nb::gil_scoped_release release;
  for (std::size_t j = 0; j < reads.size(); ++j) {
    const std::vector<int>& folds = folds_[k];
    const std::size_t n = n_values[j];
    if (n && rows[j].size() != folds.size())
      throw InputError("ShapeError", "ChainShards: got " + std::to_string(rows[j].size()) +
                                         " sums of blocks of tiles; " + std::to_string(folds.size()) + " add up");
    Array<float>& sum = found.emplace_back(n);
    if (n) add_branches(rows[j], folds, n, sum.data());
    if (const std::shared_ptr<OwnEvents>& events = reads[j].lists.order().own)
      sum = events->to_slots(sum.data(), reads[j].lists.own_run()->n_slots());
  }
  return found;
}

}  // namespace sparsesnn
