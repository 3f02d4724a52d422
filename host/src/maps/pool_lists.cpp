#include "pool_lists.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "host/src/machine/thread_pool.h"

namespace sparsesnn {
namespace {

// An entry of a list in one of the windows that contain it.
struct InWindow {
  std::uint32_t window, entry;  // the neuron of the result; the entry's place in the list
  std::uint32_t cell;           // in its window, row by row
  bool is_spike;
};

// The windows over each place of a map: `window` of channel 0, and the place in it.
class WindowsOver {
 public:
  struct One {
    std::uint32_t window, cell;
  };

  explicit WindowsOver(const PoolShape& s) {
    for (int y = 0; y < s.pre_height; ++y)
      for (int x = 0; x < s.pre_width; ++x) {
        starts_.push_back(static_cast<std::uint32_t>(all_.size()));
        for (int row = y / s.stride[0]; row >= 0 && y - row * s.stride[0] < s.size[0]; --row)
          for (int column = x / s.stride[1]; column >= 0 && x - column * s.stride[1] < s.size[1]; --column)
            if (row < s.height() && column < s.width())
              all_.push_back(
                  {static_cast<std::uint32_t>((row * s.width() + column) * s.channels),
                   static_cast<std::uint32_t>((y - row * s.stride[0]) * s.size[1] + x - column * s.stride[1])});
      }
    starts_.push_back(static_cast<std::uint32_t>(all_.size()));
  }
  const One* begin(std::uint32_t place) const { return all_.data() + starts_[place]; }
  const One* end(std::uint32_t place) const { return all_.data() + starts_[place + 1]; }

 private:
  std::vector<std::uint32_t> starts_;
  std::vector<One> all_;
};

// Some of the lists, pooled.
struct Piece {
  std::vector<std::uint32_t> ids;
  std::vector<float> values;
  std::vector<std::int64_t> ends, entries;

  void pool(const Lists& lists, std::int64_t list, const PoolShape& shape, const WindowsOver& over,
            std::int32_t* n_spikes, bool graded);

 private:
  // A window's entries; winner: the entry with the maximum, null if it is not listed.
  struct Pooled {
    const InWindow *first, *last, *winner;
  };

  void find(const Lists& lists, std::int64_t list, const PoolShape& shape, const WindowsOver& over);

  std::vector<InWindow> as_listed_, found_;
  std::vector<std::uint32_t> next_;  // of each window: the number of entries, then the place of the next one; else 0
  std::vector<std::uint64_t> is_found_;  // a bit per window
  std::vector<Pooled> near_;             // windows without spikes
};

// Entries ascend within spikes and within near-spikes, so a counting sort orders them.
void Piece::find(const Lists& lists, std::int64_t list, const PoolShape& s, const WindowsOver& over) {
  const std::int64_t begin = lists.offsets[list], end = lists.offsets[list + 1], near = begin + lists.n_spikes[list];
  const std::uint32_t plane = s.pre_height * s.pre_width, n_channels = s.channels;
  const std::size_t n_windows = static_cast<std::size_t>(s.height()) * s.width() * s.channels;
  next_.resize(n_windows);
  is_found_.assign((n_windows + 63) / 64, 0);
  as_listed_.clear();
  for (std::int64_t j = begin; j < end; ++j) {
    const std::uint32_t id = lists.id(j), c = s.channels_first ? id / plane : id % n_channels;
    const std::uint32_t place = s.channels_first ? id % plane : id / n_channels;
    for (const WindowsOver::One* one = over.begin(place); one < over.end(place); ++one) {
      const std::uint32_t window = one->window + c;
      as_listed_.push_back({window, static_cast<std::uint32_t>(j - begin), one->cell, j < near});
      ++next_[window];
      is_found_[window / 64] |= 1ull << window % 64;
    }
  }
  std::uint32_t n = 0;
  const auto each_found = [&](auto&& visit) {
    for (std::size_t word = 0; word < is_found_.size(); ++word)
      for (std::uint64_t bits = is_found_[word]; bits; bits &= bits - 1)
        visit(next_[word * 64 + __builtin_ctzll(bits)]);
  };
  each_found([&](std::uint32_t& next) { n += std::exchange(next, n); });
  found_.resize(n);
  for (const InWindow& one : as_listed_) found_[next_[one.window]++] = one;
  each_found([&](std::uint32_t& next) { next = 0; });
  for (std::uint32_t k = 1; k < n; ++k) {  // inserts near-spikes between spikes
    const InWindow one = found_[k];
    std::uint32_t at = k;
    for (; at > 0 && found_[at - 1].window == one.window && found_[at - 1].cell > one.cell; --at)
      found_[at] = found_[at - 1];
    if (at < k) found_[at] = one;
  }
}

void Piece::pool(const Lists& lists, std::int64_t list, const PoolShape& shape, const WindowsOver& over,
                 std::int32_t* n_spikes, bool graded) {
  find(lists, list, shape, over);
  const std::int64_t begin = lists.offsets[list];
  const auto value_of = [&](const InWindow& one) {
    return !one.is_spike ? 0.0f : lists.values ? lists.values[begin + one.entry] : 1.0f;
  };
  const auto add = [&](const Pooled& one, float value) {
    ids.push_back(one.first->window);
    if (graded) values.push_back(value);
    if (!shape.maximum)
      for (const InWindow* entry = one.first; entry < one.last; ++entry) entries.push_back(begin + entry->entry);
    else if (one.winner)
      entries.push_back(begin + one.winner->entry);
    ends.push_back(static_cast<std::int64_t>(entries.size()));
  };
  const std::uint32_t n_cells = static_cast<std::uint32_t>(shape.size[0] * shape.size[1]);
  const std::size_t before = ids.size();
  near_.clear();
  const InWindow* const end = found_.data() + found_.size();
  for (const InWindow* first = found_.data(); first < end;) {
    Pooled one{first, first, nullptr};
    float value = 0.0f;
    bool spikes = false;
    for (; one.last < end && one.last->window == first->window; ++one.last) {
      spikes |= one.last->is_spike;
      if (!shape.maximum) value += value_of(*one.last);
    }
    if (shape.maximum) {
      const InWindow* most = first;
      value = value_of(*first);
      for (const InWindow* other = first + 1; other < one.last; ++other)
        if (value < value_of(*other)) value = value_of(*(most = other));
      std::uint32_t absent = 0;  // the first place of the window that is not listed
      for (const InWindow* other = first; other < one.last && other->cell == absent; ++other) ++absent;
      if (absent < n_cells && (value < 0.0f || (value == 0.0f && absent < most->cell)))
        value = 0.0f;
      else
        one.winner = most;
    }
    if (spikes)
      add(one, shape.share * value);
    else if (one.winner || !shape.maximum)
      near_.push_back(one);
    first = one.last;
  }
  *n_spikes = static_cast<std::int32_t>(ids.size() - before);
  for (const Pooled& one : near_) add(one, 0.0f);
}

}  // namespace

PooledLists pool_lists(const Lists& lists, std::int64_t n_lists, const PoolShape& shape) {
  const bool graded = !shape.maximum || lists.values;
  const int n_pieces = static_cast<int>(std::min<std::int64_t>(n_lists, 4 * num_threads()));
  const WindowsOver over(shape);
  std::vector<Piece> pieces(n_pieces);
  PooledLists out;
  out.wide = static_cast<std::int64_t>(shape.height()) * shape.width() * shape.channels > 65536;
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.offsets[0] = 0;
  out.n_spikes = Array<std::int32_t>(n_lists);
  const auto first_list = [&](int k) { return n_lists * k / n_pieces; };
  parallel_for(n_pieces, [&](int k, int) {
    for (std::int64_t i = first_list(k); i < first_list(k + 1); ++i) {
      pieces[k].pool(lists, i, shape, over, &out.n_spikes[i], graded);
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
