#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "host/src/maps/windows.h"
#include "host/src/ranks/chain_shards.h"
#include "host/src/ranks/made_up.h"
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

Array<float> joined(Array<float> first, Array<float> second) {
  if (!first.size()) return second;
  if (!second.size()) return first;
  Array<float> both(first.size() + second.size());
  std::copy_n(first.data(), first.size(), both.data());
  std::copy_n(second.data(), second.size(), both.data() + first.size());
  return both;
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

ChainShards::ChainShards(const nb::object& python)
    : exchange_(nb::cast<std::shared_ptr<Exchange>>(python.attr("exchange"))),
      rank_(static_cast<std::size_t>(exchange_->rank())),
      first_(nb::cast<std::vector<First>>(python.attr("first"))),
      inputs_(nb::cast<std::vector<First>>(python.attr("inputs"))),
      folds_(nb::cast<std::vector<std::vector<int>>>(python.attr("folds"))),
      n_blocks_(nb::cast<std::vector<std::vector<std::size_t>>>(python.attr("n_blocks"))) {
  for (nb::handle order : python.attr("orders")) orders_.push_back(list_order(order));
  const auto n_ranks = static_cast<std::size_t>(exchange_->size());
  for (const std::vector<First>& of : {first_, inputs_})
    for (const First& first : of)
      if (first.size() != n_ranks + 1 || !std::is_sorted(first.begin(), first.end()))
        throw InputError("ShapeError", "ChainShards: give first neurons of all ranks, which ascend");
  for (std::size_t k = 0; k < n_blocks_.size(); ++k)
    if (n_blocks_[k].size() != n_ranks ||
        std::accumulate(n_blocks_[k].begin(), n_blocks_[k].end(), std::size_t{0}) != folds_.at(k).size())
      throw InputError("ShapeError", "ChainShards: give the number of blocks of each rank's tiles");
}

MergedLists ChainShards::whole_lists(std::size_t k, const PyLayer& layer, const std::shared_ptr<PyRun>& own,
                                     ValueOrder& order) const {
  const std::vector<std::uint32_t>& first = first_[k];
  const int n_steps = layer.n_steps, n_samples = layer.n_samples;
  const std::int64_t n_lists = static_cast<std::int64_t>(n_steps) * n_samples;
  const bool limited = layer.spec.capacity > 0, is_first = first[rank_] == 0;
  const std::optional<ListOrder> sorts = layer.spec.save ? orders_[k] : std::nullopt;
  const nb::gil_scoped_release release;
  Lists lists;
  Array<unsigned char> message;
  if (own) {
    lists = lists_of(*own);
    const std::uint32_t n = first[rank_ + 1] - first[rank_];
    if (sorts) order.own = std::make_shared<OwnEvents>(lists, static_cast<int>(n), n_steps, n_samples, *sorts);
    message = shard_message(lists, n_lists, n, limited && is_first ? own->n_dropped() : nullptr, order.own.get());
  }
  std::vector<Message> messages =
      exchange_->gather(Message::of(message), {"lists", {}, [&](int r) {
                                                 return made_up_lists(lists, n_steps, n_samples, first, rank_,
                                                                      static_cast<std::size_t>(r), limited, sorts);
                                               }});
  MergedLists merged;
  if (!owns_all(k)) {
    if (sorts) {
      order.sorted = std::make_shared<SortedLists>(messages, first, n_steps, n_samples, *sorts);
      for (std::size_t r = 0; r < messages.size(); ++r) {
        const std::size_t end = order.sorted->ends()[r];
        messages[r] = {messages[r].data + end, messages[r].size - end};
      }
    }
    merged = merge_messages(messages, n_lists, limited, first);
  }
  exchange_->release(Exchange::layers);
  return merged;
}

Array<float> ChainShards::whole_potentials(std::size_t k, const PyLayer& layer,
                                           const std::shared_ptr<PyRun>& own) const {
  const std::vector<std::uint32_t>& first = first_[k];
  const std::size_t n_rows = static_cast<std::size_t>(layer.n_steps) * layer.n_samples, n = first.back();
  Content content{"potentials"};
  for (std::size_t r = 0; r + 1 < first.size(); ++r)
    content.sizes.push_back(sizeof(float) * n_rows * (first[r + 1] - first[r]));
  const nb::gil_scoped_release release;
  const Message of_rank = own ? Message::of(own->potentials_data(), content.sizes[rank_] / sizeof(float)) : Message();
  const std::vector<Message> messages = exchange_->gather(of_rank, content);
  Array<float> potentials;
  if (!owns_all(k)) {
    potentials = Array<float>(n_rows * n);
    for (std::size_t r = 0; r < messages.size(); ++r) {
      const std::size_t n_here = first[r + 1] - first[r];
      const float* from = reinterpret_cast<const float*>(messages[r].data);
      for (std::size_t i = 0; i < n_rows; ++i)
        std::copy_n(from + i * n_here, n_here, potentials.data() + i * n + first[r]);
    }
  }
  exchange_->release(Exchange::layers);
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

// [R], each [sums over this rank's blocks of tiles][the owner's entries].
std::vector<Array<float>> ChainShards::parts_for_owners(Read& read) const {
  const PyRun& whole = read.lists;
  const std::shared_ptr<SortedLists>& sorted = whole.order().sorted;
  const std::size_t n_given = read.by_event ? sorted->size() : whole.n_slots();
  const std::size_t n_rows = n_given ? read.d_value.size() / n_given : 0;
  const auto n_lists = static_cast<std::int64_t>(whole.n_lists());
  if (!sorted) return split_values(lists_of(whole), n_lists, read.d_value.data(), static_cast<int>(n_rows), read.first);
  if (!read.by_event)
    read.d_value =
        sorted->from_slots(lists_of(whole), static_cast<std::int64_t>(whole.n_slots()), read.d_value.data(), n_rows);
  std::vector<Array<float>> parts;
  for (std::size_t r = 0; r + 1 < read.first.size(); ++r)
    parts.push_back(columns(read.d_value.data(), n_rows, sorted->size(), static_cast<std::size_t>(sorted->edges()[r]),
                            static_cast<std::size_t>(sorted->edges()[r + 1])));
  return parts;
}

std::vector<Array<float>> ChainShards::to_owners(std::size_t k, std::vector<Read> reads) const {
  const std::size_t n_ranks = first_[k].size() - 1;
  const nb::gil_scoped_release release;
  // A message has the sums of the first read, then those of the next.
  std::vector<Array<float>> given(n_ranks);
  std::vector<std::size_t> n_values;
  for (Read& read : reads) {
    const std::shared_ptr<OwnEvents>& events = read.lists.order().own;
    n_values.push_back(events ? events->size() : n_own(read.first, read.lists));
    if (n_blocks_[k][rank_] == 0) continue;
    std::vector<Array<float>> parts = parts_for_owners(read);
    for (std::size_t r = 0; r < n_ranks; ++r) given[r] = joined(std::move(given[r]), std::move(parts[r]));
  }
  Content content{"list gradients"};
  const std::size_t n_all = std::accumulate(n_values.begin(), n_values.end(), std::size_t{0});
  for (const std::size_t n : n_blocks_[k]) content.sizes.push_back(sizeof(float) * n * n_all);
  std::vector<Message> to;
  for (const Array<float>& part : given) to.push_back(Message::of(part.data(), part.size()));
  exchange_->start(Exchange::layers, to, content);
  const std::vector<Message> from = exchange_->finish(Exchange::layers);
  std::vector<std::vector<const float*>> rows(reads.size());
  for (std::size_t r = 0; r < n_ranks; ++r) {
    const float* next = reinterpret_cast<const float*>(from[r].data);
    for (std::size_t j = 0; j < reads.size(); ++j)
      for (std::size_t block = 0; block < n_blocks_[k][r]; ++block)
        rows[j].push_back(std::exchange(next, next + n_values[j]));
  }
  std::vector<Array<float>> found;
  for (std::size_t j = 0; j < reads.size(); ++j) {
    const std::size_t n = n_values[j];
    Array<float>& sum = found.emplace_back(n);
    if (n) add_branches(rows[j], folds_[k], n, sum.data());
    if (const std::shared_ptr<OwnEvents>& events = reads[j].lists.order().own)
      sum = events->to_slots(sum.data(), reads[j].lists.own_run()->n_slots());
  }
  exchange_->release(Exchange::layers);
  return found;
}

}  // namespace sparsesnn
