// Rows of layers that hear windows (window_passes.h): one pair of functions a neuron model.
#include <cstring>

#include "../../codelets/deliver_window.h"
#include "../../codelets/neuron/models.h"
#include "../../codelets/step.h"
#include "../../codelets/step_grad.h"
#include "../../codelets/surrogate.h"
#include "kernel_parts.h"
#include "window_passes.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

constexpr int W = window_block;
// Vectors that are worked on together, so that one need not wait for the result of its own operation before.
constexpr int n_together = W / vector_width < 4 ? W / vector_width : 4;
// Steps between two looks at whether anything changes or anybody is to be listed.
constexpr int piece = 32;

typedef Fired<Vector>::Lanes Lanes;

inline bool any(Lanes x) {
  std::int32_t lane[vector_width], all = 0;
  std::memcpy(lane, &x, sizeof(x));
  for (const std::int32_t one : lane) all |= one;
  return all != 0;
}

inline Lanes differences(Vector a, Vector b) {
  Lanes x, y;
  std::memcpy(&x, &a, sizeof(x));
  std::memcpy(&y, &b, sizeof(y));
  return x ^ y;
}

inline float* copied(float* to, const float* from, int n, int n_room, float fill) {
  std::memcpy(to, from, sizeof(float) * static_cast<std::size_t>(n));
  for (int k = n; k < n_room; ++k) to[k] = fill;
  return to;
}

// Calls body with 0 to n - 1 as constants.
template <int n, class Body>
inline void each_constant(Body&& body) {
  if constexpr (n > 0) {
    each_constant<n - 1>(body);
    body(std::integral_constant<int, n - 1>());
  }
}

inline Vector lesser(Vector a, Vector b) {
  const Fired<Vector> more = Fired<Vector>::of(a, b);
  return where(more, b) + where({~more.is}, a);
}

// What a source's spikes, or (`near`) near-spikes, bring to a row at step t.
struct StepEntries {
  const RowSource& from;
  const std::uint32_t* starts = nullptr;
  std::int64_t first = 0;  // slot

  StepEntries(const RowSource& source, int t, int n_samples, int sample, bool near) : from(source) {
    if (t < from.delay) return;
    starts = from.starts + from.stride * static_cast<std::size_t>(t - from.delay) + (near ? from.n_pre_rows + 1 : 0);
    first = from.lists.offsets[static_cast<std::int64_t>(t - from.delay) * n_samples + sample];
  }

  bool more_than(int n) const {
    for (const HeardRow* heard = from.heard; starts && heard < from.heard_end; ++heard)
      n -= static_cast<int>(starts[heard->row + 1] - starts[heard->row]);
    return n < 0;
  }

  // Calls visit(slot, run, weight), the place of the run among `runs`.
  template <class Visit>
  void each(Visit&& visit) const {
    if (!starts) return;
    with_ids(from.lists.wide, from.lists.ids, [&](auto* ids) {
      for (const HeardRow* heard = from.heard; heard < from.heard_end; ++heard) {
        const std::uint32_t begin = starts[heard->row], end = starts[heard->row + 1], base = heard->base;
        const float* const weight = from.weight + heard->weight;
        if (!from.run_starts) {
          for (std::int64_t slot = first + begin; slot < first + end; ++slot) visit(slot, ids[slot] - base, weight);
        } else {
          for (std::int64_t slot = first + begin; slot < first + end; ++slot)
            for (std::uint32_t k = from.run_starts[ids[slot] - base]; k < from.run_starts[ids[slot] - base + 1]; ++k)
              visit(slot, k, weight);
        }
      }
    });
  }
};

// ---- forward --------------------------------------------------------------------------------------------------------

template <class M>
class ForwardRow {
 public:
  ForwardRow(const WindowForward& pass, int sample, int row, const WindowForwardRoom& room)
      : pass_(pass),
        spec_(*pass.spec),
        room_(room),
        sample_(sample),
        first_(row * pass.length),
        own_(static_cast<std::size_t>(sample) * spec_.n + first_),
        n_blocks_(window_blocks(pass.length)),
        n_fields_(spec_.n_fields()),
        n_learnt_(spec_.n_learnt()) {
    const int n = pass.length, n_room = n_blocks_ * W;
    for (int s = 0; s < M::n_states; ++s) copied(room.state[s], pass.state[s] + own_, n, n_room, 0.0f);
    for (int k = 0; k < M::n_parameters; ++k)
      copied(room.parameter[k], pass.neuron.parameters[k] + first_, n, n_room, k == M::threshold ? __FLT_MAX__ : 0.0f);
    copied(room.grad_threshold, pass.neuron.grad_threshold + first_, n, n_room, __FLT_MAX__);
    if (pass.neuron.bias)
      copied(room.bias, pass.neuron.bias + first_, n, n_room, 0.0f);
    else
      std::memset(room.bias, 0, sizeof(float) * n_room);
    for (int k = 0; k < M::n_parameters; ++k)
      for (int s = 0; s < M::n_states; ++s)
        if (room.trace[k][s]) std::memset(room.trace[k][s], 0, sizeof(float) * n_room);
    if (room.slope) std::memset(room.slope, 0, sizeof(float) * n_room);
    for (int block = 0; block < n_blocks_; ++block) {
      room.next[block] = 0;
      room.fired[block] = !pass.starts_silent;
      room.records[block].size = 0;
    }
  }

  void run(const RowSource* sources) {
    for (int t = 0; t < pass_.n_steps; ++t) {
      n_reached_ = 0;
      for (int k = 0; k < pass_.n_sources; ++k) hear(sources[k], t);
      for (int k = 0; k < n_reached_; ++k) step_block(room_.reached[k], t, room_.current);
    }
    for (int block = 0; block < n_blocks_; ++block) catch_up(block, pass_.n_steps);
    for (int s = 0; s < M::n_states; ++s)
      std::memcpy(pass_.state[s] + own_, room_.state[s], sizeof(float) * static_cast<std::size_t>(pass_.length));
  }

 private:
  // Adds what spikes of a source bring to step t. Where they are many, all blocks get currents of their own at once.
  void hear(const RowSource& from, int t) {
    const StepEntries entries(from, t, pass_.n_samples, sample_, false);
    const bool many = entries.more_than(n_blocks_);
    if (many) reach(0, n_blocks_ - 1, t);
    const RowRun* const runs = from.runs;
    float* const current = room_.current;
    const auto add = [&](bool all_reached) {
      entries.each([&](std::int64_t slot, std::uint32_t k, const float* weight) {
        const RowRun& run = runs[k];
        if (!all_reached && from.seen[run.place] != t) {
          from.seen[run.place] = t;
          const RowRun& clipped = from.clipped[k];
          reach(clipped.to / W, (clipped.to + static_cast<int>(clipped.n) - 1) / W, t);
        }
        if (from.lists.values)
          deliver_run(current + run.to, weight + run.weight, static_cast<int>(run.n), from.lists.values[slot]);
        else
          deliver_run(current + run.to, weight + run.weight, static_cast<int>(run.n));
      });
    };
    if (many)
      add(true);
    else
      add(false);
  }

  // Blocks get currents of their own at step t.
  void reach(int first, int last, int t) {
    for (int block = first; block <= last; ++block) {
      if (room_.next[block] < 0) continue;  // reached before
      catch_up(block, t);
      std::memcpy(room_.current + block * W, room_.bias + block * W, sizeof(float) * W);
      room_.next[block] = -1;
      room_.reached[n_reached_++] = block;
    }
  }

  // Steps of a block up to `until`, which nothing reaches.
  void catch_up(int block, int until) {
    while (room_.next[block] < until) {
      if (room_.fired[block] || n_learnt_ || !rest(block, until))
        for (int n = 0; n < piece && room_.next[block] < until; ++n) step_block(block, room_.next[block], room_.bias);
    }
  }

  TileNeurons<M> neurons(int block) const {
    TileNeurons<M> n;
    for (int s = 0; s < M::n_states; ++s) n.state[s] = room_.state[s] + block * W;
    for (int k = 0; k < M::n_parameters; ++k) n.parameter[k] = room_.parameter[k] + block * W;
    for (int k = 0; k < M::n_constants; ++k) n.constant[k] = broadcast(spec_.constants[k]);
    return n;
  }

  // Steps of a block up to `until`, at which nobody is listed; nobody has fired before the first. False: somebody would
  // be; the steps of pieces before that are done.
  bool rest(int block, int until) {
    const TileNeurons<M> of = neurons(block);
    const float *const grad_threshold = room_.grad_threshold + block * W, *const bias = room_.bias + block * W;
    constexpr Fired<Vector> nobody{};
    std::int32_t& next = room_.next[block];
    while (next < until) {
      const int n = until - next < piece ? until - next : piece;
      bool changes = false;
      float after[M::n_states][W];
      for (int k = 0; k < W; k += n_together * vector_width) {
        Vector z[n_together][M::n_states], p[n_together][M::n_parameters], limit[n_together], i[n_together];
        Lanes listed = {}, changed = {};
        for (int v = 0; v < n_together; ++v) {
          const int at = k + v * vector_width;
          of.load_states(z[v], at);
          of.load_parameters(p[v], at);
          i[v] = load(bias + at);
          limit[v] = spec_.save ? lesser(load(grad_threshold + at), p[v][M::threshold]) : p[v][M::threshold];
        }
        for (int step = 0; step < n; ++step) {
          for (int v = 0; v < n_together; ++v) {
            Vector before[M::n_states];
            for (int s = 0; s < M::n_states; ++s) before[s] = z[v][s];
            M::step(z[v], p[v], of.constant, nobody, nobody, i[v]);
            listed |= z[v][0] > limit[v];
            if (step == 0)
              for (int s = 0; s < M::n_states; ++s) changed |= differences(before[s], z[v][s]);
          }
          if (step == 0 && !any(changed)) break;  // nor would later steps change anything
        }
        if (any(listed)) return false;
        changes |= any(changed);
        for (int v = 0; v < n_together; ++v)
          for (int s = 0; s < M::n_states; ++s) store(after[s] + k + v * vector_width, z[v][s]);
      }
      for (int s = 0; s < M::n_states; ++s) std::memcpy(of.state[s], after[s], sizeof(float) * W);
      next = changes ? next + n : until;
    }
    return true;
  }

  void step_block(int block, int t, const float* currents) {
    const float* const current = currents + block * W;
    const TileNeurons<M> of = neurons(block);
    const bool fresh = t == 0 && pass_.nobody_fired;
    if (n_learnt_) {
      each_constant<M::n_parameters>([&](auto learnt) {
        if (!room_.trace[learnt][0]) return;
        float* trace[M::n_states];
        for (int s = 0; s < M::n_states; ++s) trace[s] = room_.trace[learnt][s] + block * W;
        step_traces<M, learnt(), W>(of, trace, at(room_.slope, block * W), spec_.detach_reset, current, fresh);
      });
    }
    Masks masks = step<M, W>(of, room_.grad_threshold + block * W, current, fresh);
    if (block == n_blocks_ - 1) {  // weights that overflow could make numbers behind the row fire
      const std::uint64_t valid = ~0ull >> (64 - (pass_.length - block * W));
      masks.fired &= valid;
      masks.listed &= valid;
    }
    if (!spec_.save) masks.listed = masks.fired;
    room_.next[block] = t + 1;
    room_.fired[block] = masks.fired != 0;
    if (masks.listed || room_.slope) record(block, t, of, masks);
  }

  void record(int block, int t, const TileNeurons<M>& of, const Masks& masks) {
    const float *const x = of.state[0], *const threshold = of.parameter[M::threshold];
    float* const slope = at(room_.slope, block * W);
    alignas(64) float sigma[W];
    if (slope) {
      std::memset(slope, 0, sizeof(float) * W);
      for (int k = 0; k < W; ++k) sigma[k] = x[k] - threshold[k];
      surrogate_all(spec_.surrogate, spec_.slope, sigma, W);
    }
    SlotBuffer& records = room_.records[block];
    const int size = window_record_floats + n_fields_;
    records.reserve(static_cast<std::size_t>(__builtin_popcountll(masks.listed)) * size);
    for (std::uint64_t bits = masks.listed; bits; bits &= bits - 1) {
      const int k = __builtin_ctzll(bits);
      const std::uint32_t id = static_cast<std::uint32_t>(first_ + block * W + k);
      const WindowRecord head{t, 2 * id + static_cast<std::uint32_t>(masks.fired >> k & 1)};
      float* out = records.data + records.size;
      std::memcpy(out, &head, sizeof(head));
      records.size += size;
      if (!n_fields_) continue;
      out += window_record_floats;
      *out++ = x[k] - threshold[k];
      if (M::reads_x) *out++ = x[k];
      if (slope) slope[k] = sigma[k];
      for (int q = 0; q < M::n_parameters; ++q)
        if (room_.trace[q][0]) *out++ = room_.trace[q][0][block * W + k] - (q == M::threshold ? 1.0f : 0.0f);
    }
  }

  const WindowForward& pass_;
  const LayerSpec& spec_;
  const WindowForwardRoom& room_;
  const int sample_, first_;
  const std::size_t own_;
  const int n_blocks_, n_fields_, n_learnt_;
  int n_reached_ = 0;  // blocks in the step at hand
};

template <class M>
void forward_row(const WindowForward& pass, int sample, int row, const RowSource* sources,
                 const WindowForwardRoom& room) {
  if constexpr (M::threshold >= 0) ForwardRow<M>(pass, sample, row, room).run(sources);
}

// ---- backward -------------------------------------------------------------------------------------------------------

static_assert(sizeof(ListedNeuron) <= window_listed_bytes);

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
        listed_(static_cast<ListedNeuron*>(room.listed)),
        n_blocks_(window_blocks(pass.length)),
        adds_q_(M::adds_q && spec_.adds_q()) {
    const int n = pass.length, n_room = n_blocks_ * W, first = row * pass.length;
    const std::size_t whole = sizeof(float) * window_row_floats(n);
    for (int s = 0; s < M::n_states; ++s) std::memset(room.d_state[s], 0, whole);
    for (int k = 0; k < M::n_parameters; ++k)
      copied(room.parameter[k], pass.neuron.parameters[k] + first, n, n_room, k == M::threshold ? __FLT_MAX__ : 0.0f);
    std::memset(room.d_current, 0, whole);
    std::memset(room.q, 0, whole);
    if (room.d_bias) std::memset(room.d_bias, 0, whole);
    for (int block = 0; block < n_blocks_; ++block) {
      room.next[block] = pass.n_steps;
      room.alive[block] = false;
      room.n_listed[block] = 0;
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
    for (int k = 0; k < M::n_parameters; ++k) n.parameter[k] = room_.parameter[k] + block * W;
    for (int k = 0; k < M::n_constants; ++k) n.constant[k] = spec_.constants[k];
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

  // ∂L/∂i of step t at the blocks that have entries there.
  void take(int t) {
    int n_reached = 0;
    const auto reach = [&](int block) {
      int& n = room_.n_listed[block];
      if (n == 0) {
        go_back(block, t + 1);
        room_.alive[block] = true;
        room_.reached[n_reached++] = block;
      }
      return n++;
    };
    const float through = spec_.detach_reset ? 0.0f : 1.0f;
    const std::uint32_t* const listed = own_.listed + own_.listed_stride * t;
    for (int near = 0; near < 2; ++near)
      each_own(pass_.lists, listed + near * (own_.n_rows + 1), t, [&](std::int64_t slot, std::uint32_t at) {
        const int block = static_cast<int>(at / W), j = reach(block);
        const float q = pass_.d_slots[slot];
        if (adds_q_) {
          room_.q[at] = q;
          return;
        }
        const float x = M::reads_x ? pass_.fields[pass_.n_slots + slot] : 0.0f;
        const Fired<float> fired = Fired<float>::of(x, room_.parameter[threshold_place()][at]);
        listed_[block * W + j] = {static_cast<int>(at % W), {fired, pass_.fields[slot], q, x, through}};
      });
    if (pass_.silenced.offsets)
      each_own(pass_.silenced, own_.silenced + own_.silenced_stride * t, t, [&](std::int64_t, std::uint32_t at) {
        const int block = static_cast<int>(at / W), j = reach(block);
        if (!adds_q_) listed_[block * W + j] = {static_cast<int>(at % W), {{true}, 0.0f, 0.0f, 0.0f, through}};
      });
    for (int k = 0; k < n_reached; ++k) {
      const int block = room_.reached[k];
      float* const d_current = room_.d_current + block * W;
      if constexpr (M::adds_q)
        if (adds_q_) {
          std::memcpy(d_current, room_.q + block * W, sizeof(float) * W);
          std::memset(room_.q + block * W, 0, sizeof(float) * W);
          grad_row<M, W>(grads(block), d_current, nullptr);
        }
      if (!adds_q_) grad_row<M, W>(grads(block), d_current, nullptr, listed_ + block * W, room_.n_listed[block]);
      room_.n_listed[block] = 0;
      room_.next[block] = t;
      if (room_.d_bias)
        for (int j = block * W; j < block * W + W; j += vector_width)
          store(room_.d_bias + j, load(room_.d_bias + j) + load(room_.d_current + j));
    }
  }

  static constexpr int threshold_place() { return M::threshold < 0 ? 0 : int(M::threshold); }

  // Steps of a block down to t, without entries.
  void go_back(int block, int t) {
    const int n = room_.next[block] - t;
    room_.next[block] = t;
    if (n == 0 || !room_.alive[block]) return;
    const TileGrads<M> of = grads(block);
    Vector c[M::n_constants];
    for (int j = 0; j < M::n_constants; ++j) c[j] = broadcast(of.constant[j]);
    for (int k = 0; k < W; k += n_together * vector_width) {
      Vector d[n_together][M::n_states], p[n_together][M::n_parameters], sum[n_together];
      for (int v = 0; v < n_together; ++v) {
        const int at = k + v * vector_width;
        for (int s = 0; s < M::n_states; ++s) d[v][s] = load(of.d[s] + at);
        for (int q = 0; q < M::n_parameters; ++q) p[v][q] = load(of.parameter[q] + at);
        sum[v] = room_.d_bias ? load(room_.d_bias + block * W + at) : Vector{};
      }
      if (room_.d_bias) {
        for (int step = 0; step < n; ++step)
          for (int v = 0; v < n_together; ++v) {
            M::adjoint(d[v], p[v], c);
            sum[v] += M::d_current(d[v], p[v], c);
          }
      } else {
        for (int step = 0; step < n; ++step)
          for (int v = 0; v < n_together; ++v) M::adjoint(d[v], p[v], c);
      }
      for (int v = 0; v < n_together; ++v) {
        const int at = k + v * vector_width;
        for (int s = 0; s < M::n_states; ++s) store(of.d[s] + at, d[v][s]);
        store(room_.d_current + block * W + at, M::d_current(d[v], p[v], c));
        if (room_.d_bias) store(room_.d_bias + block * W + at, sum[v]);
      }
    }
  }

  // What entries of a source get from ∂L/∂i of step t, and give to the gradient of its weights.
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

  // Calls visit(slot, weight, ∂L/∂i, n) for the runs to blocks that any gradient has come to.
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

  // Brings blocks to step t. Whether any gradient has come to them.
  bool come_to(int first, int last, int t) {
    bool alive = false;
    for (int block = first; block <= last; ++block) {
      go_back(block, t);
      alive |= room_.alive[block];
    }
    return alive;
  }

  // The lanes of an entry's sum wait until there are enough to add up those of many at once.
  void put(float* d_value, Vector lanes) {
    lanes_[n_waiting_] = lanes;
    waiting_[n_waiting_++] = d_value;
    if (n_waiting_ == vector_width) add_shares();
  }

  void add_shares() {
    if (!n_waiting_) return;
    float sums[vector_width];
    store(sums, sum_rows(lanes_));
    for (int k = 0; k < n_waiting_; ++k) *waiting_[k] += sums[k];
    n_waiting_ = 0;
  }

  const WindowBackward& pass_;
  const LayerSpec& spec_;
  const WindowBackwardRoom& room_;
  const OwnRows& own_;
  const int sample_, row_;
  ListedNeuron* const listed_;
  const int n_blocks_;
  const bool adds_q_;
  Vector lanes_[vector_width] = {};
  float* waiting_[vector_width];
  int n_waiting_ = 0;
};

template <class M>
void backward_row(const WindowBackward& pass, int sample, int row, const RowSource* sources, const OwnRows& own,
                  const WindowBackwardRoom& room) {
  if constexpr (M::threshold >= 0) BackwardRow<M>(pass, sample, row, own, room).run(sources);
}

// ---- all models -----------------------------------------------------------------------------------------------------

template <class... M>
const WindowKernels& kernels_of(int model, List<M...>) {
  static constexpr WindowKernels all[] = {{forward_row<M>, backward_row<M>}...};
  return all[model];
}

}  // namespace

const WindowKernels& window_kernels(const LayerSpec& spec) { return kernels_of(model_index(*spec.model), Models()); }

}  // namespace sparsesnn::SPARSESNN_ISA
