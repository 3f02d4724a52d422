// Rows of layers with windows as input, forward (window_passes.h).
#include <cstring>

#include "codelets/cpu/step.h"
#include "codelets/surrogate.h"
#include "window_kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

// Steps between two checks whether anything changes or a neuron must be listed.
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

inline Vector lesser(Vector a, Vector b) {
  const Fired<Vector> more = Fired<Vector>::of(a, b);
  return where(more, b) + where({~more.is}, a);
}

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
        n_learnt_(spec_.n_learnt()),
        records_x_(spec_.records_x()) {
    const int n = pass.length, n_room = n_blocks_ * W;
    for (int s = 0; s < M::n_states; ++s) copied(room.state[s], pass.state[s] + own_, n, n_room, 0.0f);
    for (int k = 0; k < M::n_entries; ++k)
      copied(room.entry[k], pass.neuron.entries[k] + first_, n, n_room, k == M::threshold ? __FLT_MAX__ : 0.0f);
    copied(room.grad_threshold, pass.neuron.grad_threshold + first_, n, n_room, __FLT_MAX__);
    if (pass.neuron.bias)
      copied(room.bias, pass.neuron.bias + first_, n, n_room, 0.0f);
    else
      std::memset(room.bias, 0, sizeof(float) * n_room);
    for (int q = 0; q < n_learnt_; ++q) {
      for (int s = 0; s < M::n_states; ++s) std::memset(room.trace[q][s], 0, sizeof(float) * n_room);
      for (int k = 0; k < M::n_entries; ++k)
        copied(room.derivative[q][k], pass.neuron.derivatives[q][k] + first_, n, n_room, 0.0f);
    }
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
  // Adds the spikes of a source at step t. If there are many, all blocks get their own currents at once.
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

  // Gives blocks their own currents at step t.
  void reach(int first, int last, int t) {
    for (int block = first; block <= last; ++block) {
      if (room_.next[block] < 0) continue;  // reached before
      catch_up(block, t);
      std::memcpy(room_.current + block * W, room_.bias + block * W, sizeof(float) * W);
      room_.next[block] = -1;
      room_.reached[n_reached_++] = block;
    }
  }

  // Runs the steps of a block up to `until`, which no spikes reach.
  void catch_up(int block, int until) {
    while (room_.next[block] < until) {
      if (room_.fired[block] || n_learnt_ || !rest(block, until))
        for (int n = 0; n < piece && room_.next[block] < until; ++n) step_block(block, room_.next[block], room_.bias);
    }
  }

  TileNeurons<M> neurons(int block) const {
    TileNeurons<M> n;
    for (int s = 0; s < M::n_states; ++s) n.state[s] = room_.state[s] + block * W;
    n.entries = room_.entry;
    n.first = static_cast<std::size_t>(block) * W;
    return n;
  }

  // Runs the steps of a block up to `until`, if no neuron is listed in them and none has fired before the first. False:
  // one would be; the steps of pieces before that are done.
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
        Vector z[n_together][M::n_states], p[n_together][M::n_entries], limit[n_together], i[n_together];
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
            M::step(z[v], p[v], nobody, i[v]);
            listed |= z[v][0] > limit[v];
            if (step == 0)
              for (int s = 0; s < M::n_states; ++s) changed |= differences(before[s], z[v][s]);
          }
          if (step == 0 && !any(changed)) break;  // then later steps change nothing either
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
    Masks masks;
    const float* const grad_threshold = room_.grad_threshold + block * W;
    if (n_learnt_) {
      const std::size_t state = static_cast<std::size_t>(block) * W;
      const float* const* derivatives[max_learnt];
      for (int q = 0; q < n_learnt_; ++q) derivatives[q] = room_.derivative[q];
      const Traces<max_states> traces{n_learnt_, room_.trace, derivatives, at(room_.slope, state), spec_.detach_reset};
      masks = step_with_traces<M, W>(of, grad_threshold, traces, state, current, fresh);
    } else {
      masks = step<M, W>(of, grad_threshold, current, fresh);
    }
    if (block == n_blocks_ - 1) {  // overflowing weights could make numbers after the end of the row fire
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
    const float *const x = of.state[0], *const threshold = of.entries[M::threshold] + of.first;
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
      if (records_x_) *out++ = x[k];
      if (slope) slope[k] = sigma[k];
      for (int q = 0; q < n_learnt_; ++q)
        *out++ = room_.trace[q][0][block * W + k] - room_.derivative[q][M::threshold][block * W + k];
    }
  }

  const WindowForward& pass_;
  const LayerSpec& spec_;
  const WindowForwardRoom& room_;
  const int sample_, first_;
  const std::size_t own_;
  const int n_blocks_, n_fields_, n_learnt_;
  const bool records_x_;
  int n_reached_ = 0;  // blocks in the current step
};

template <class M>
void run(const WindowForward& pass, int sample, int row, const RowSource* sources, const WindowForwardRoom& room) {
  if constexpr (M::may_fire) ForwardRow<M>(pass, sample, row, room).run(sources);
}

template <class... M>
auto run_of(int shape, List<M...>) {
  static constexpr decltype(&forward_row) all[] = {run<M>...};
  return all[shape];
}

}  // namespace

void forward_row(const WindowForward& pass, int sample, int row, const RowSource* sources,
                 const WindowForwardRoom& room) {
  run_of(shape_index(*pass.spec->shape), Shapes())(pass, sample, row, sources, room);
}

}  // namespace sparsesnn::SPARSESNN_ISA
