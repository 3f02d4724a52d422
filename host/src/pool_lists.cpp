#include "pool_lists.h"

#include <algorithm>

#include "thread_pool.h"

namespace sparsesnn {
namespace {

// An entry of a list in one of the windows that it lies in.
struct InWindow {
  std::uint32_t window, cell;  // the neuron of the result; the place in its window, row by row
  std::int64_t entry;
  bool is_spike;
};

// Some of the lists, pooled.
struct Piece {
  std::vector<std::uint32_t> ids;
  std::vector<float> values;
  std::vector<std::int64_t> ends, entries;
  std::vector<InWindow> found;

  void pool(const Lists& lists, std::int64_t list, const PoolShape& shape, std::int32_t* n_spikes, bool graded);

 private:
  void find(const Lists& lists, std::int64_t list, const PoolShape& shape);
};

void Piece::find(const Lists& lists, std::int64_t list, const PoolShape& s) {
  found.clear();
  const std::int64_t begin = lists.offsets[list], near = begin + lists.n_spikes[list];
  const int height = s.height(), width = s.width();
  for (std::int64_t j = begin; j < lists.offsets[list + 1]; ++j) {
    const int id = static_cast<int>(lists.id(j));
    const int plane = s.pre_height * s.pre_width;
    const int c = s.channels_first ? id / plane : id % s.channels,
              place = s.channels_first ? id % plane : id / s.channels;
    const int y = place / s.pre_width, x = place % s.pre_width;
    for (int row = y / s.stride[0]; row >= 0 && y - row * s.stride[0] < s.size[0]; --row)
      for (int column = x / s.stride[1]; column >= 0 && x - column * s.stride[1] < s.size[1]; --column)
        if (row < height && column < width)
          found.push_back({static_cast<std::uint32_t>((row * width + column) * s.channels + c),
                           static_cast<std::uint32_t>((y - row * s.stride[0]) * s.size[1] + x - column * s.stride[1]),
                           j, j < near});
  }
  std::sort(found.begin(), found.end(), [](const InWindow& a, const InWindow& b) {
    return a.window != b.window ? a.window < b.window : a.cell < b.cell;
  });
}

void Piece::pool(const Lists& lists, std::int64_t list, const PoolShape& shape, std::int32_t* n_spikes, bool graded) {
  find(lists, list, shape);
  const auto value_of = [&](const InWindow& one) {
    return !one.is_spike ? 0.0f : lists.values ? lists.values[one.entry] : 1.0f;
  };
  // Calls visit(first, last, value, winner) for each window; winner: what a maximum comes from, null if it is not
  // listed.
  const auto each = [&](auto&& visit) {
    for (auto first = found.begin(); first != found.end();) {
      auto last = first;
      float value = 0.0f;
      const InWindow* winner = nullptr;
      bool spikes = false;
      for (; last != found.end() && last->window == first->window; ++last) {
        spikes |= last->is_spike;
        if (!shape.maximum) value += value_of(*last);
      }
      if (shape.maximum) {
        const auto most = std::max_element(
            first, last, [&](const InWindow& a, const InWindow& b) { return value_of(a) < value_of(b); });
        const std::uint32_t n_cells = static_cast<std::uint32_t>(shape.size[0] * shape.size[1]);
        std::uint32_t absent = 0;  // the first place of the window that is not listed
        for (auto one = first; one != last && one->cell == absent; ++one) ++absent;
        value = value_of(*most);
        const bool from_absent = absent < n_cells && (value < 0.0f || (value == 0.0f && absent < most->cell));
        if (from_absent)
          value = 0.0f;
        else
          winner = &*most;
      }
      visit(first, last, shape.share * value, winner, spikes);
      first = last;
    }
  };
  const auto add = [&](auto first, auto last, float value, const InWindow* winner) {
    ids.push_back(first->window);
    if (graded) values.push_back(value);
    if (!shape.maximum)
      for (; first != last; ++first) entries.push_back(first->entry);
    else if (winner)
      entries.push_back(winner->entry);
    ends.push_back(static_cast<std::int64_t>(entries.size()));
  };
  const std::size_t before = ids.size();
  each([&](auto first, auto last, float value, const InWindow* winner, bool spikes) {
    if (spikes) add(first, last, value, winner);
  });
  *n_spikes = static_cast<std::int32_t>(ids.size() - before);
  each([&](auto first, auto last, float, const InWindow* winner, bool spikes) {
    if (!spikes && (winner || !shape.maximum)) add(first, last, 0.0f, winner);
  });
}

}  // namespace

PooledLists pool_lists(const Lists& lists, std::int64_t n_lists, const PoolShape& shape) {
  const bool graded = !shape.maximum || lists.values;
  const int n_pieces = static_cast<int>(std::min<std::int64_t>(n_lists, 4 * num_threads()));
  std::vector<Piece> pieces(n_pieces);
  PooledLists out;
  out.wide = static_cast<std::int64_t>(shape.height()) * shape.width() * shape.channels > 65536;
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.offsets[0] = 0;
  out.n_spikes = Array<std::int32_t>(n_lists);
  const auto first_list = [&](int k) { return n_lists * k / n_pieces; };
  parallel_for(n_pieces, [&](int k, int) {
    for (std::int64_t i = first_list(k); i < first_list(k + 1); ++i) {
      pieces[k].pool(lists, i, shape, &out.n_spikes[i], graded);
      out.offsets[i + 1] = static_cast<std::int64_t>(pieces[k].ids.size());
    }
  });
  std::vector<std::int64_t> slots(n_pieces + 1), entries(n_pieces + 1);
  for (int k = 0; k < n_pieces; ++k) {
    slots[k + 1] = slots[k] + static_cast<std::int64_t>(pieces[k].ids.size());
    entries[k + 1] = entries[k] + static_cast<std::int64_t>(pieces[k].entries.size());
  }
  out.ids = Array<unsigned char>(static_cast<std::size_t>(slots[n_pieces]) * (out.wide ? 4 : 2));
  if (graded) out.values = Array<float>(slots[n_pieces]);
  out.ends = Array<std::int64_t>(slots[n_pieces]);
  out.entries = Array<std::int64_t>(entries[n_pieces]);
  parallel_for(n_pieces, [&](int k, int) {
    const Piece& piece = pieces[k];
    for (std::int64_t i = first_list(k); i < first_list(k + 1); ++i) out.offsets[i + 1] += slots[k];
    for (std::size_t j = 0; j < piece.ids.size(); ++j) {
      const std::size_t to = static_cast<std::size_t>(slots[k]) + j;
      if (out.wide)
        reinterpret_cast<std::uint32_t*>(out.ids.data())[to] = piece.ids[j];
      else
        reinterpret_cast<std::uint16_t*>(out.ids.data())[to] = static_cast<std::uint16_t>(piece.ids[j]);
      out.ends[to] = entries[k] + piece.ends[j];
    }
    std::copy(piece.values.begin(), piece.values.end(), out.values.data() + (graded ? slots[k] : 0));
    std::copy(piece.entries.begin(), piece.entries.end(), out.entries.data() + entries[k]);
  });
  return out;
}

void pool_lists_grad(const std::int64_t* ends, const std::int64_t* entries, const float* d_pooled, std::size_t n_pooled,
                     float share, float* d_values) {
  std::int64_t k = 0;
  for (std::size_t j = 0; j < n_pooled; ++j)
    for (; k < ends[j]; ++k) d_values[entries[k]] += share * d_pooled[j];
}

}  // namespace sparsesnn
