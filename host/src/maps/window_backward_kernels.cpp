// Rows of layers with windows as input, backward (window_passes.h).
#include <cstring>
#include <new>

#include "codelets/cpu/step_grad.h"
#include "window_kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

static_assert(sizeof(ListedRows<W>) == window_listed_bytes);

template <class M>
class BackwardRow {
 public:
  BackwardRow(const WindowBackward& pass, int sample, int row, const OwnRows& own, const WindowBackwardRoom& room)
      : pass_(pass),
        spec_(*pass.spec),
        room_(room),
        own_(own),
        sample_(sample),
        row_(row),
        listed_(static_cast<ListedRows<W>*>(room.listed)),
        n_blocks_(window_blocks(pass.length)),
        adds_q_(M::adds_q && spec_.adds_q()) {
    const int n = pass.length, n_room = n_blocks_ * W, first = row * pass.length;
    const std::size_t whole = sizeof(float) * window_row_floats(n);
    for (int s = 0; s < M::n_states; ++s) std::memset(room.d_state[s], 0, whole);
    for (int k = 0; k < M::n_entries; ++k)
      copied(room.entry[k], pass.neuron.entries[k] + first, n, n_room, k == M::threshold ? __FLT_MAX__ : 0.0f);
    std::memset(room.d_current, 0, whole);
    std::memset(room.q, 0, whole);
    if (room.d_bias) std::memset(room.d_bias, 0, whole);
    for (int block = 0; block < n_blocks_; ++block) {
      room.next[block] = pass.n_steps;
      room.alive[block] = false;
      room.n_listed[block] = 0;
      if (!adds_q_) new (listed_ + block) ListedRows<W>();
    }
  }

  void run(const RowSource* sources) {
    for (int t = pass_.n_steps - 1; t >= 0; --t) {
      take(t);
      for (int k = 0; k < pass_.n_sources; ++k) hear(sources[k], k, t);
    }
    if (room_.d_bias)
      for (int block = 0; block < n_blocks_; ++block) go_back(block, 0);
  }

 private:
  TileGrads<M> grads(int block) const {
    TileGrads<M> n;
    for (int s = 0; s < M::n_states; ++s) n.d[s] = room_.d_state[s] + block * W;
    n.entries = room_.entry;
    n.first = static_cast<std::size_t>(block) * W;
    return n;
  }

  // Calls visit(slot, place in the row) for the entries of some lists in this row at step t.
  template <class Visit>
  void each_own(const Lists& lists, const std::uint32_t* starts, int t, Visit&& visit) const {
    if (starts[row_] == starts[row_ + 1]) return;
    const std::int64_t first = lists.offsets[static_cast<std::int64_t>(t) * pass_.n_samples + sample_];
    const std::uint32_t base = static_cast<std::uint32_t>(row_) * static_cast<std::uint32_t>(pass_.length);
    with_ids(lists.wide, lists.ids, [&](auto* ids) {
      for (std::int64_t slot = first + starts[row_]; slot < first + starts[row_ + 1]; ++slot)
        visit(slot, ids[slot] - base);
    });
  }

  // ∂L/∂i of step t at the blocks with entries at that step.
  void take(int t) {
    int n_reached = 0;
    const auto reach = [&](int block) {
      int& n = room_.n_listed[block];
      if (n++ > 0) return;
      go_back(block, t + 1);
      room_.alive[block] = true;
      room_.reached[n_reached++] = block;
    };
    const bool records_x = spec_.records_x();
    const std::uint32_t* const listed = own_.listed + own_.listed_stride * t;
    for (int near = 0; near < 2; ++near)
      each_own(pass_.lists, listed + near * (own_.n_rows + 1), t, [&](std::int64_t slot, std::uint32_t at) {
        reach(static_cast<int>(at / W));
        const float q = pass_.d_slots[slot];
        if (adds_q_)
          room_.q[at] = q;
        else
          listed_[at / W].put(static_cast<int>(at % W), q, pass_.fields[slot], !near,
                              records_x ? pass_.fields[pass_.n_slots + slot] : 0.0f);
      });
    if (pass_.silenced.offsets)
      each_own(pass_.silenced, own_.silenced + own_.silenced_stride * t, t, [&](std::int64_t, std::uint32_t at) {
        reach(static_cast<int>(at / W));
        if (!adds_q_) listed_[at / W].put(static_cast<int>(at % W), 0.0f, 0.0f, true, 0.0f);
      });
    for (int k = 0; k < n_reached; ++k) {
      const int block = room_.reached[k];
      float* const d_current = room_.d_current + block * W;
      if constexpr (M::adds_q)
        if (adds_q_) {
          std::memcpy(d_current, room_.q + block * W, sizeof(float) * W);
          std::memset(room_.q + block * W, 0, sizeof(float) * W);
          grad_row<M, W>(grads(block), d_current, d_current, nullptr);
        }
      if (!adds_q_) {
        grad_row<M, W>(grads(block), d_current, nullptr, listed_[block], spec_.detach_reset);
        listed_[block] = {};
      }
      room_.n_listed[block] = 0;
      room_.next[block] = t;
      if (room_.d_bias)
        for (int j = block * W; j < block * W + W; j += vector_width)
          store(room_.d_bias + j, load(room_.d_bias + j) + load(room_.d_current + j));
    }
  }

  // Runs the steps of a block down to t, without entries.
  void go_back(int block, int t) {
    const int n = room_.next[block] - t;
    room_.next[block] = t;
    if (n == 0 || !room_.alive[block]) return;
    const TileGrads<M> of = grads(block);
    for (int k = 0; k < W; k += n_together * vector_width) {
      Vector d[n_together][M::n_states], p[n_together][M::n_entries], sum[n_together];
      for (int v = 0; v < n_together; ++v) {
        const int at = k + v * vector_width;
        for (int s = 0; s < M::n_states; ++s) d[v][s] = load(of.d[s] + at);
        load_entries<M>(p[v], of.entries, of.first + at);
        sum[v] = room_.d_bias ? load(room_.d_bias + block * W + at) : Vector{};
      }
      if (room_.d_bias) {
        for (int step = 0; step < n; ++step)
          for (int v = 0; v < n_together; ++v) {
            M::adjoint(d[v], p[v]);
            sum[v] += M::d_current(d[v], p[v]);
          }
      } else {
        for (int step = 0; step < n; ++step)
          for (int v = 0; v < n_together; ++v) M::adjoint(d[v], p[v]);
      }
      for (int v = 0; v < n_together; ++v) {
        const int at = k + v * vector_width;
        for (int s = 0; s < M::n_states; ++s) store(of.d[s] + at, d[v][s]);
        store(room_.d_current + block * W + at, M::d_current(d[v], p[v]));
        if (room_.d_bias) store(room_.d_bias + block * W + at, sum[v]);
      }
    }
  }

  // The gradients of a source's entries from ∂L/∂i of step t, and their part of the gradient of its weights.
  void hear(const RowSource& from, int k, int t) {
    const bool learns = pass_.first_d[k] >= 0;
    float* const d_weight = learns ? room_.d_weight + pass_.first_d[k] : nullptr;
    if (float* const d_value = pass_.d_value[k]) {
      each(from, t, false, [&](std::int64_t slot, const float* weight, const float* d, int n) {
        if (learns && !from.lists.values) {
          put(d_value + slot, share_and_deliver_run(weight, d_weight + (weight - from.weight), d, n));
        } else {
          put(d_value + slot, lanes_of_run(weight, d, n));
          if (learns) deliver_run(d_weight + (weight - from.weight), d, n, from.lists.values[slot]);
        }
      });
      each(from, t, true, [&](std::int64_t slot, const float* weight, const float* d, int n) {
        put(d_value + slot, lanes_of_run(weight, d, n));
      });
      add_shares();
    } else if (learns) {
      each(from, t, false, [&](std::int64_t slot, const float* weight, const float* d, int n) {
        if (from.lists.values)
          deliver_run(d_weight + (weight - from.weight), d, n, from.lists.values[slot]);
        else
          deliver_run(d_weight + (weight - from.weight), d, n);
      });
    }
  }

  // Calls visit(slot, weight, ∂L/∂i, n) for the runs to blocks that have received any gradient.
  template <class Visit>
  void each(const RowSource& from, int t, bool near, Visit&& visit) {
    const StepEntries entries(from, t, pass_.n_samples, sample_, near);
    const RowRun* const runs = from.runs;
    const float* const d_current = room_.d_current;
    if (entries.more_than(n_blocks_)) {
      if (!come_to(0, n_blocks_ - 1, t)) return;
      entries.each([&](std::int64_t slot, std::uint32_t k, const float* weight) {
        visit(slot, weight + runs[k].weight, d_current + runs[k].to, static_cast<int>(runs[k].n));
      });
    } else {
      entries.each([&](std::int64_t slot, std::uint32_t k, const float* weight) {
        std::int32_t& seen = from.seen[runs[k].place];
        if (seen < 0 || seen >> 1 != t) {
          const RowRun& clipped = from.clipped[k];
          seen = 2 * t + come_to(clipped.to / W, (clipped.to + static_cast<int>(clipped.n) - 1) / W, t);
        }
        if (seen & 1) visit(slot, weight + runs[k].weight, d_current + runs[k].to, static_cast<int>(runs[k].n));
      });
    }
  }

  // Advances blocks to step t. Returns whether any has received a gradient.
  bool come_to(int first, int last, int t) {
    bool alive = false;
    for (int block = first; block <= last; ++block) {
      go_back(block, t);
      alive |= room_.alive[block];
    }
    return alive;
  }

  // The lanes of an entry's sum are stored until those of many can be added at once.
  void put(float* d_value, Vector lanes) {
    lanes_[n_waiting_] = lanes;
    waiting_[n_waiting_++] = d_value;
    if (n_waiting_ == vector_width) add_shares();
  }

  void add_shares() {
    if (!n_waiting_) return;
    float sums[vector_width];
    store_sums(sums, lanes_);
    for (int k = 0; k < n_waiting_; ++k) *waiting_[k] += sums[k];
    n_waiting_ = 0;
  }

  const WindowBackward& pass_;
  const LayerSpec& spec_;
  const WindowBackwardRoom& room_;
  const OwnRows& own_;
  const int sample_, row_;
  ListedRows<W>* const listed_;  // of each block
  const int n_blocks_;
  const bool adds_q_;
  Vector lanes_[vector_width] = {};
  float* waiting_[vector_width];
  int n_waiting_ = 0;
};

template <class M>
void run(const WindowBackward& pass, int sample, int row, const RowSource* sources, const OwnRows& own,
         const WindowBackwardRoom& room) {
  if constexpr (M::may_fire) BackwardRow<M>(pass, sample, row, own, room).run(sources);
}

template <class... M>
auto run_of(int shape, List<M...>) {
  static constexpr decltype(&backward_row) all[] = {run<M>...};
  return all[shape];
}

}  // namespace

void backward_row(const WindowBackward& pass, int sample, int row, const RowSource* sources, const OwnRows& own,
                  const WindowBackwardRoom& room) {
  run_of(shape_index(*pass.spec->shape), Shapes())(pass, sample, row, sources, own, room);
}

}  // namespace sparsesnn::SPARSESNN_ISA
