// Python bindings of merging the lists of shards, and of sums over ranks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "host/src/machine/memory.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/ranks/chain_shards.h"
#include "host/src/ranks/shard_lists.h"
#include "host/src/training/column_squares.h"
#include "host/src/training/group_tree.h"
#include "host/src/training/tile_sums.h"
#include "python_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

using Out = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

// Does not check the ids: they are checked wherever the population's lists are read.
Lists lists_of(const PyLists& from, std::uint32_t n_neurons, const char* caller) {
  const bool wide = n_neurons > 65536;
  const std::size_t n_lists = from.n_spikes.size();
  if (from.offsets.size() != n_lists + 1 ||
      from.ids.dtype() != (wide ? nb::dtype<std::int32_t>() : nb::dtype<std::uint16_t>()))
    throw InputError("ShapeError", std::string(caller) + ": give one more offset than lists, and ids that fit " +
                                       std::to_string(n_neurons) + " neurons");
  const std::int64_t* offsets = from.offsets.data();
  bool good = offsets[0] == 0 && offsets[n_lists] == static_cast<std::int64_t>(from.ids.size());
  for (std::size_t i = 0; i < n_lists; ++i)
    good = good && from.n_spikes.data()[i] >= 0 && offsets[i + 1] - offsets[i] >= from.n_spikes.data()[i];
  if (!good) throw InputError("SpikeListError", std::string(caller) + ": offsets or counts do not fit the ids");
  return {offsets, from.ids.data(), from.n_spikes.data(), wide};
}

nb::object message_of_shard(const PyLists& lists, std::uint32_t n_neurons,
                            const std::optional<In<std::int32_t>>& dropped, const OwnEvents* events) {
  const std::size_t n_lists = lists.n_spikes.size();
  const Lists of = lists_of(lists, n_neurons, "shard_message");
  if (dropped && dropped->size() != n_lists) throw InputError("ShapeError", "shard_message: dropped has other lists");
  Array<unsigned char> message =
      shard_message(of, static_cast<std::int64_t>(n_lists), n_neurons, dropped ? dropped->data() : nullptr, events);
  const std::size_t n = message.size();
  return to_numpy(message, {n});
}

// The number of steps of n_lists lists.
int steps_of(std::size_t n_lists, int n_samples) {
  if (n_samples < 0 || (n_samples ? n_lists % static_cast<std::size_t>(n_samples) : n_lists))
    throw InputError("ShapeError", std::to_string(n_lists) + " lists are not whole steps of " +
                                       std::to_string(n_samples) + " samples");
  return n_samples ? static_cast<int>(n_lists / static_cast<std::size_t>(n_samples)) : 0;
}

OwnEvents* events_of(const PyLists& lists, int n_neurons, int n_samples, nb::handle order) {
  const int n_steps = steps_of(lists.n_spikes.size(), n_samples);
  const Lists of = lists_of(lists, static_cast<std::uint32_t>(n_neurons), "OwnEvents");
  check_lists(of, static_cast<std::int64_t>(lists.n_spikes.size()), static_cast<std::int64_t>(lists.ids.size()),
              n_neurons, "OwnEvents");
  return new OwnEvents(of, n_neurons, n_steps, n_samples, list_order(order).value());
}

// One message per rank, whose neurons begin at first[r].
std::vector<Message> messages_of_ranks(const std::vector<In<unsigned char>>& messages,
                                       const std::vector<std::uint32_t>& first, const char* caller) {
  if (messages.empty() || first.size() != messages.size() + 1 || first[0] != 0 || !first.back() ||
      !std::is_sorted(first.begin(), first.end()))
    throw InputError("ShapeError",
                     std::string(caller) + ": give a message a rank, and first neurons that ascend from 0");
  std::vector<Message> from;
  for (const In<unsigned char>& message : messages) from.push_back({message.data(), message.size()});
  return from;
}

// Returns offsets, ids, n_spikes, dropped of the population.
nb::tuple lists_of_messages(const std::vector<In<unsigned char>>& messages, std::size_t n_lists, bool limited,
                            const std::vector<std::uint32_t>& first) {
  const std::vector<Message> from = messages_of_ranks(messages, first, "merge_messages");
  MergedLists merged;
  {
    nb::gil_scoped_release release;
    merged = merge_messages(from, static_cast<std::int64_t>(n_lists), limited, first);
  }
  const std::size_t n_ids = static_cast<std::size_t>(merged.offsets[n_lists]);
  nb::object ids = ids_to_numpy(merged.ids, merged.wide, n_ids);
  return nb::make_tuple(to_numpy(merged.offsets, {n_lists + 1}), ids, to_numpy(merged.n_spikes, {n_lists}),
                        to_numpy(merged.dropped, {n_lists}));
}

SortedLists* sorted_of_messages(const std::vector<In<unsigned char>>& messages, const std::vector<std::uint32_t>& first,
                                int n_steps, int n_samples, nb::handle order) {
  const std::vector<Message> from = messages_of_ranks(messages, first, "SortedLists");
  if (n_steps < 0 || n_samples < 0) throw InputError("ShapeError", "SortedLists: steps or samples are negative");
  const ListOrder sorts = list_order(order).value();
  nb::gil_scoped_release release;
  return new SortedLists(from, first, n_steps, n_samples, sorts);
}

nb::object values_of_events(const SortedLists& sorted, const PyLists& population, const In<float>& values) {
  const std::size_t n_values = population.ids.size();
  if (values.ndim() != 2 || values.shape(1) != n_values)
    throw InputError("ShapeError", "SortedLists.from_slots: give rows of a value for every id");
  const Lists lists = lists_of(population, sorted.n_neurons(), "SortedLists.from_slots");
  check_lists(lists, static_cast<std::int64_t>(population.n_spikes.size()), static_cast<std::int64_t>(n_values),
              static_cast<int>(sorted.n_neurons()), "SortedLists.from_slots");
  if (population.n_spikes.size() != sorted.n_lists())
    throw InputError("ShapeError", "SortedLists.from_slots: give the lists that were sorted");
  Array<float> found;
  {
    nb::gil_scoped_release release;
    found = sorted.from_slots(lists, static_cast<std::int64_t>(n_values), values.data(), values.shape(0));
  }
  return to_numpy(found, {values.shape(0), sorted.size()});
}

nb::object slots_of_values(const OwnEvents& events, const In<float>& values, std::size_t n_slots) {
  if (values.size() != events.size() || n_slots < events.n_slots())
    throw InputError("ShapeError", "OwnEvents.to_slots: give a value for each event, and the slots of its lists");
  Array<float> found = events.to_slots(values.data(), n_slots);
  return to_numpy(found, {n_slots});
}

nb::object squares_by_column(const In<float>& x) {
  if (x.ndim() != 2) throw InputError("ShapeError", "column_squares: give a matrix");
  Array<double> sums;
  {
    nb::gil_scoped_release release;
    sums = column_squares(x.data(), x.shape(0), x.shape(1));
  }
  return to_numpy(sums, {x.shape(1)});
}

// For every branch: its first group, the one after its last, and the pending sums to which it is added.
nb::list branches_of(int n_groups, const std::vector<int>& edges) {
  if (n_groups < 0) throw InputError("ShapeError", "find_branches: n_groups is negative");
  nb::list out;
  for (const Branch& branch : find_branches(n_groups, edges))
    out.append(nb::make_tuple(branch.lo, branch.hi, branch.folds));
  return out;
}

void add_branch_sums(const std::vector<In<float>>& branches, const std::vector<int>& folds, const Out& total,
                     const std::optional<In<bool>>& active, const std::vector<Out>& copies) {
  std::vector<const float*> data;
  int waiting = 0;
  bool good = branches.size() == folds.size() && !branches.empty();
  for (std::size_t k = 0; good && k < branches.size(); ++k) {
    good = branches[k].size() == total.size() && folds[k] >= 0 && folds[k] <= waiting;
    waiting += 1 - folds[k];
    data.push_back(branches[k].data());
  }
  if (!good || waiting != 1)
    throw InputError("ShapeError",
                     "add_branches: give as many sums as folds, which must leave one sum, all of the total's size");
  if (active && (total.ndim() != 2 || active->size() != total.shape(0)))
    throw InputError("ShapeError", "add_branches: `active` needs a matrix, and an entry for each of its rows");
  std::vector<float*> others;
  for (const Out& copy : copies) {
    if (!active || copy.size() != total.size())
      throw InputError("ShapeError", "add_branches: copies need `active`, and the total's size");
    others.push_back(copy.data());
  }
  nb::gil_scoped_release release;
  if (active)
    add_active_rows(data, folds, active->data(), total.shape(0), total.shape(1), total.data(), others);
  else
    add_branches(data, folds, total.size(), total.data());
}

// Values of the entries of a population's lists, for the owner of each: rank r owns neurons first[r]..first[r + 1]-1.
nb::list values_by_owner(const PyLists& population, const In<float>& values, const std::vector<std::uint32_t>& first) {
  const std::size_t n_lists = population.n_spikes.size(), n_values = population.ids.size();
  if (first.size() < 2 || values.ndim() != 2 || values.shape(1) != n_values)
    throw InputError("ShapeError", "split_values: give rows of a value for every id, and two first neurons at least");
  const std::size_t n_rows = values.shape(0);
  const Lists lists = lists_of(population, first.back(), "split_values");
  std::vector<Array<float>> parts;
  {
    nb::gil_scoped_release release;
    parts = split_values(lists, static_cast<std::int64_t>(n_lists), values.data(), static_cast<int>(n_rows), first);
  }
  nb::list out;
  for (Array<float>& part : parts) {
    const std::size_t n = n_rows ? part.size() / n_rows : 0;
    out.append(to_numpy(part, {n_rows, n}));
  }
  return out;
}

// For every rank r the blocks into which its tiles edges[r]..edges[r + 1]-1 add up, each with its folds.
nb::list folds_of_tiles(const std::vector<int>& edges) {
  if (edges.empty() || edges[0] != 0 || !std::is_sorted(edges.begin(), edges.end()))
    throw InputError("ShapeError", "tile_folds: edges must ascend from 0");
  std::vector<TileBlock> all;
  std::vector<std::size_t> ends;
  for (std::size_t r = 0; r + 1 < edges.size(); ++r) {
    for (const TileBlock& block : tile_blocks(edges[r], edges[r + 1])) all.push_back(block);
    ends.push_back(all.size());
  }
  const std::vector<int> folds = block_folds(all);
  nb::list out;
  std::size_t k = 0;
  for (const std::size_t end : ends) {
    nb::list of_rank;
    for (; k < end; ++k) of_rank.append(folds[k]);
    out.append(of_rank);
  }
  return out;
}

nb::object empty_matrix(std::size_t n_rows, std::size_t n_columns, bool shared) {
  if (n_columns && n_rows > (std::size_t{1} << 60) / n_columns) throw std::bad_alloc();
  const std::size_t n = n_rows * n_columns;
  Array<float> matrix = shared ? Array<float>::shared(n) : Array<float>(n);
  return to_numpy(matrix, {n_rows, n_columns});
}

std::optional<std::pair<int, std::size_t>> shared_file() {
  const SharedMemory memory = shared_memory();
  if (!memory.n_bytes) return std::nullopt;
  return std::make_pair(memory.file, memory.n_bytes);
}

thread_local PyObject* python_look = nullptr;  // a reference owned by this thread

void look_meanwhile_by(nb::object look) {
  const nb::object before = nb::steal(python_look);
  python_look = look.is_none() ? nullptr : look.release().ptr();
  look_meanwhile(python_look ? +[] {
    const nb::gil_scoped_acquire held;
    return nb::cast<bool>(nb::borrow(python_look)());
  } : nullptr);
}

}  // namespace

void register_sharded(nb::module_& m) {
  nb::class_<OwnEvents>(m, "OwnEvents",
                        "The lists of a shard, sorted by sender for `order`: (delay, rows, groups) as of chunk_plan; "
                        "see host/src/ranks/sorted_lists.h.")
      .def(nb::new_(&events_of), "lists"_a, "n_neurons"_a, "n_samples"_a, "order"_a)
      .def("__len__", &OwnEvents::size, "Number of events: entries that arrive.")
      .def("to_slots", &slots_of_values, "values"_a, "n_slots"_a,
           "float32[n_slots]: values of the events at the places of their entries in the lists; 0 for others.");
  nb::class_<SortedLists>(m, "SortedLists",
                          "The lists of a population, sorted for `order`, from the messages of its shards; rank r owns "
                          "neurons\nfirst[r] to first[r + 1] - 1.")
      .def(nb::new_(&sorted_of_messages), "messages"_a, "first"_a, "n_steps"_a, "n_samples"_a, "order"_a)
      .def_prop_ro("ends", &SortedLists::ends, "Where the lists of each message begin, after its events.")
      .def_prop_ro("edges", &SortedLists::edges, "Events edges[r] to edges[r + 1] - 1 are rank r's.")
      .def("from_slots", &values_of_events, "population"_a, "values"_a,
           "float32[K, events]: from values [K, entries] of the population's lists.");
  m.def(
      "chunk_plan",
      [](int n_tiles) {
        const ChunkPlan plan = chunk_plan(n_tiles >= num_threads());
        return std::make_tuple(plan.n_rows, plan.n_groups);
      },
      "n_tiles"_a,
      "Rows and groups of samples of a chunk, in the backward pass of a layer of n_tiles tiles: see ChunkPlan.");
  m.def("shard_message", &message_of_shard, "lists"_a, "n_neurons"_a, "dropped"_a.none(),
        "events"_a.none() = nb::none(),
        "uint8[n]: lists of one shard, of n_neurons, for `merge_messages`, and its sorted events, if given.");
  m.def("merge_messages", &lists_of_messages, "messages"_a, "n_lists"_a, "limited"_a, "first"_a,
        "Lists of a population from the messages of its shards: offsets, ids, n_spikes and, if `limited`,\n"
        "dropped; rank r owns neurons first[r] to first[r + 1] - 1.");
  m.def("find_branches", &branches_of, "n_groups"_a, "edges"_a,
        "How the sums of groups of samples, cut at `edges`, add up to a batch's: (first group, last + 1,\n"
        "folds) for every branch; folds: the number of pending sums it is added to, the latest first.");
  m.def("add_branches", &add_branch_sums, "branches"_a, "folds"_a, "total"_a, "active"_a.none() = nb::none(),
        "copies"_a = std::vector<Out>(),
        "Overwrites `total`, which may be one of them, with the sum of branches, float32 of any shape; of a\n"
        "matrix [M, N] only the active rows, bool[M], if given, and writes these rows to `copies` too.");
  m.def("split_values", &values_by_owner, "population"_a, "values"_a, "first"_a,
        "For every rank the values [K, entries] of its neurons' entries; rank r owns first[r] to first[r + 1] - 1.");
  m.def("tile_folds", &folds_of_tiles, "edges"_a,
        "For every rank r, which holds tiles edges[r] to edges[r + 1] - 1 of a population, the folds of the\n"
        "blocks of which its part of a sum over tiles consists; `add_branches` makes one sum of all ranks'\n"
        "blocks.");
  m.def("empty_matrix", &empty_matrix, "n_rows"_a, "n_columns"_a, "shared"_a = false,
        "float32[n_rows, n_columns], not initialized, from the memory that the engine keeps from step to\n"
        "step, or from shared memory.");
  m.def("shared_memory", &shared_file,
        "Descriptor and size of the file that holds sums for other replicas from now on, or None without\n"
        "shared memory; see host/src/machine/memory.h.");
  m.def(
      "shared_place", [](const In<float>& array) { return place_in_shared(array.data()); }, "array"_a,
      "Where in shared memory an array begins; -1: it is not in shared memory.");
  m.def("look_meanwhile", &look_meanwhile_by, "look"_a.none(),
        "While the engine works for this thread it calls look(), once in a millisecond at most, until that returns "
        "False.");
  m.def("column_squares", &squares_by_column, "x"_a,
        "float64[N], sums of the squares of the columns of x [M, N], rows ascending.");
}

}  // namespace sparsesnn
