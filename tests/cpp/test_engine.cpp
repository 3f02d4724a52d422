// Runs the engine without Python, for the sanitizers: every model, reset and list rule on odd shapes, and the promise
// that threads and instruction sets do not change a bit. The numbers themselves are checked in
// tests/engine/test_engine.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "host/src/cpu/engine.h"
#include "host/src/machine/fingerprint.h"
#include "host/src/machine/isa.h"
#include "host/src/machine/thread_pool.h"
#include "lists.h"

using namespace sparsesnn;

namespace {

std::vector<float> random_floats(std::mt19937& random, std::size_t n, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> x(n);
  for (float& value : x) value = uniform(random);
  return x;
}

struct Shape {
  int n, n_pre, n_steps, n_samples, delay, tile_width;
};

template <class T>
void append(std::vector<unsigned char>& bytes, const Array<T>& array, std::size_t n) {
  const auto* data = reinterpret_cast<const unsigned char*>(array.data());
  if (array) bytes.insert(bytes.end(), data, data + n * sizeof(T));
}

// Every byte of a forward and a backward pass.
std::vector<unsigned char> run(const LayerSpec& spec, const Shape& shape, bool recurrent, unsigned seed) {
  std::mt19937 random(seed);
  const std::size_t n = shape.n;
  const int n_lists = shape.n_steps * shape.n_samples;
  const check::OwnedLists first = check::random_lists(random, n_lists, shape.n_pre, 0.3, false),
                          second = check::random_lists(random, n_lists, 5, 0.4, true),
                          own = check::random_lists(random, 3 * shape.n_samples, shape.n, 0.2, false);
  const auto weight0 = random_floats(random, shape.n_pre * n, -0.4f, 0.8f),
             weight1 = random_floats(random, 5 * n, -1, 1),
             recurrent_weight = random_floats(random, n * n, -0.5f, 0.5f),
             late_weight = random_floats(random, n * n, -0.5f, 0.5f),
             grad_threshold = random_floats(random, n, 0.1f, 0.5f), bias = random_floats(random, n, -0.1f, 0.1f),
             state = random_floats(random, n * shape.n_samples, -1, 2);
  const NeuronShape& neurons = *spec.shape;
  const std::size_t n_entries = neurons.entries.size();
  const bool spiking = spec.fires;
  std::vector<std::vector<float>> entries, derivatives;
  for (std::size_t k = 0; k < n_entries; ++k) {
    const bool threshold = neurons.entries[k] == "threshold";
    entries.push_back(random_floats(random, n, threshold ? 0.5f : -0.3f, threshold ? 1.0f : 0.8f));
  }
  for (std::size_t k = 0; k < spec.n_trained * n_entries; ++k)
    derivatives.push_back(random_floats(random, n, -0.5f, 1));

  LayerInput input;
  input.n_steps = shape.n_steps;
  input.n_samples = shape.n_samples;
  input.sources = {{first.view(), shape.n_steps, shape.n_pre, shape.delay, weight0.data()},
                   {second.view(), shape.n_steps, 5, 0, weight1.data()}};
  if (recurrent) {
    input.loops = {{recurrent_weight.data(), 1}, {late_weight.data(), 3}};
    input.own_before = own.view();
    input.n_before = 3;
  }
  for (std::size_t k = 0; k < n_entries; ++k) input.entries[k] = entries[k].data();
  for (int q = 0; q < spec.n_learnt(); ++q) {
    input.derivatives.emplace_back();
    for (std::size_t k = 0; k < n_entries; ++k)  // some are absent
      input.derivatives.back().push_back(k % 3 == 2 ? PerNeuron() : derivatives[q * n_entries + k].data());
  }
  if (spiking) input.grad_threshold = grad_threshold.data();
  input.bias = bias.data();
  for (int s = 0; s < neurons.n_states; ++s) input.state[s] = state.data();

  const LayerOutput out = layer_forward(spec, input);
  LayerSaved saved;
  std::size_t n_slots = 0;
  if (spiking) {
    n_slots = static_cast<std::size_t>(out.offsets[n_lists]);
    saved.lists = {out.offsets.data(), out.ids.data(), out.n_spikes.data(), out.wide};
    saved.fields = out.fields.data();
    saved.silenced_offsets = out.silenced_offsets.data();
    saved.silenced_ids = out.silenced_ids.data();
    check_lists(saved.lists, n_lists, static_cast<std::int64_t>(n_slots), shape.n, "output");
    for (int i = 0; i < n_lists; ++i) {
      const auto n_listed = out.offsets[i + 1] - out.offsets[i];
      CHECK(!spec.capacity || n_listed <= spec.capacity);
      CHECK(!spec.fixed || (n_listed == spec.capacity && out.n_spikes[i] == spec.capacity));
    }
  } else {
    saved.potentials = out.potentials.data();
    for (std::size_t s = 0; s < out.rows.size(); ++s) saved.rows.state[s + 1] = out.rows[s].data();
    saved.rows.current = out.currents.data();
  }
  const auto d_values = random_floats(random, n_slots, -1, 1),
             d_potentials = random_floats(random, spiking ? 0 : n_lists * n, -1, 1);
  const LayerGradients d =
      layer_backward(spec, input, saved,
                     spiking ? OutputGrads{d_values.data()} : OutputGrads{d_potentials.data(), n * shape.n_samples},
                     {{true, true}, {false, true}, {recurrent, recurrent}, {}, true});

  std::vector<unsigned char> bytes;
  append(bytes, out.ids, n_slots * 2);
  append(bytes, out.n_spikes, n_lists);
  append(bytes, out.dropped, n_lists);
  append(bytes, out.fields, n_slots * spec.n_fields());
  for (const Array<float>& one : out.state)
    append(bytes, state_from_tiles(spec, one, shape.n_samples), n * shape.n_samples);
  append(bytes, out.potentials, n_lists * n);
  append(bytes, d.d_weight[0], shape.n_pre * n);
  append(bytes, d.d_weight[1], 5 * n);
  append(bytes, d.d_value[1], second.ids.size());
  for (const Array<float>& one : d.d_loops) append(bytes, one, n * n);
  append(bytes, d.d_bias, n);
  for (const Array<float>& one : d.d_parameters) append(bytes, one, n);
  return bytes;
}

// The hash of all passes so far (FNV-1a), which ./dev arm-tests compares between machines.
std::uint64_t all_bits = 0xcbf29ce484222325;

void check_layer(const LayerSpec& spec, const Shape& shape, bool recurrent, unsigned seed) {
  set_num_threads(1);
  set_isa("base");
  const auto want = run(spec, shape, recurrent, seed);
  for (const unsigned char byte : want) all_bits = (all_bits ^ byte) * 0x100000001b3;
  for (const std::string& isa : isas_supported())
    for (int threads : {1, 3}) {
      set_isa(isa);
      set_num_threads(threads);
      CHECK(run(spec, shape, recurrent, seed) == want);
    }
}

void every_rule() {
  const Shape shapes[] = {{1, 1, 1, 1, 0, 16}, {17, 9, 4, 3, 1, 16}, {70, 33, 5, 7, 0, 32}, {130, 20, 3, 2, 2, 64}};
  unsigned seed = 0;
  for (const Shape& shape : shapes)
    for (const NeuronShape& neurons : neuron_shapes())
      for (int rule = neurons.may_fire ? 0 : 4; rule < (neurons.may_read_out ? 5 : 4); ++rule) {
        LayerSpec spec;
        spec.shape = &neurons;
        spec.fires = rule < 4;
        spec.n_trained = static_cast<int>(seed % 3);
        spec.detach_reset = rule % 2;
        spec.surrogate = static_cast<int>(++seed % surrogate_names().size());
        spec.n = shape.n;
        spec.tile_width = shape.tile_width;
        spec.capacity = rule < 2 || rule == 4 ? 0 : (shape.n + 4) / 5;
        spec.fixed = rule == 3;
        check_layer(spec, shape, spec.fires && seed % 2, seed);
      }
}

// Any worker may take a tile, even if there are fewer tiles than threads.
void more_threads_than_tiles() {
  const Shape shape{17, 9, 4, 9, 0, 16};
  LayerSpec spec;
  spec.shape = &find_shape("subtract");
  spec.n = shape.n;
  spec.tile_width = shape.tile_width;
  set_num_threads(1);
  const auto want = run(spec, shape, false, 1);
  set_num_threads(16);
  for (int k = 0; k < 300; ++k) CHECK(run(spec, shape, false, 1) == want);
  set_num_threads(1);
}

void hostile_lists() {
  const std::vector<std::uint16_t> ids{0, 2, 4, 1};
  const auto check = [&](std::vector<std::int64_t> offsets, std::vector<std::int32_t> n_spikes, int n_neurons) {
    check_lists({offsets.data(), ids.data(), n_spikes.data(), false}, 2, 4, n_neurons, "lists");
  };
  check({0, 3, 4}, {3, 1}, 5);
  check({0, 3, 4}, {2, 0}, 5);
  CHECK_THROWS(check({0, 3, 4}, {3, 1}, 4), "list 0 holds id 4; allowed: 0 to 3");
  CHECK_THROWS(check({0, 4, 4}, {4, 0}, 5), "list 0 does not ascend: id 1 after 4");
  CHECK_THROWS(check({0, 5, 4}, {3, 1}, 5), "list 0 has offsets that do not rise");
  CHECK_THROWS(check({0, 3, 4}, {4, 1}, 5), "list 0 has 3 ids but says 4 spikes");
  CHECK_THROWS(check({0, 3, 4}, {3, -1}, 5), "list 1 has 1 ids but says -1 spikes");
  CHECK_THROWS(check({1, 3, 4}, {2, 1}, 5), "offsets must run from 0");
  CHECK_THROWS(check({0, 3, 5}, {3, 2}, 5), "to the number of ids, 4");
}

// One flipped bit anywhere changes it, at sizes that no lane and no piece divides; threads do not.
void fingerprints() {
  std::mt19937 random(1);
  CHECK_EQUAL(fingerprint(nullptr, 0), fingerprint("x", 0));
  for (const std::size_t size : {1u, 7u, 8u, 63u, 64u, 65u, 200u, (1u << 18) - 1, (1u << 18) + 1, 700'001u}) {
    std::vector<unsigned char> bytes(size);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    set_num_threads(1);
    const std::uint64_t want = fingerprint(bytes.data(), size);
    set_num_threads(3);
    CHECK_EQUAL(fingerprint(bytes.data(), size), want);
    CHECK(fingerprint(bytes.data(), size - 1) != want);
    for (std::size_t at = 0; at < size; at += 1 + size / 300) {
      bytes[at] ^= 1 << at % 8;
      CHECK(fingerprint(bytes.data(), size) != want);
      bytes[at] ^= 1 << at % 8;
    }
    std::vector<unsigned char> zeros(size);  // as long as the data and its padding
    CHECK(fingerprint(zeros.data(), size) != fingerprint(zeros.data(), size - 1));
  }
}

void weights_that_are_not_finite() {
  std::mt19937 random(0);
  const check::OwnedLists lists = check::random_lists(random, 4, 3, 0.5, false);
  std::vector<float> weight(3 * 20, 0.1f), ones(20, 1.0f);
  weight[2 * 20 + 17] = std::nanf("");
  LayerSpec spec;
  spec.shape = &find_shape("subtract");
  spec.n = 20;
  spec.tile_width = 16;
  LayerInput input;
  input.n_steps = input.n_samples = 2;
  input.sources = {{lists.view(), 2, 3, 0, weight.data()}};
  for (const int k : {0, 1, 2, 3}) input.entries[k] = ones.data();
  input.grad_threshold = ones.data();
  CHECK_THROWS(layer_forward(spec, input), "weight holds NaN at [2, 17]");
  weight[2 * 20 + 17] = INFINITY;
  CHECK_THROWS(layer_forward(spec, input), "weight holds infinity at [2, 17]");
}

}  // namespace

int main() {
  every_rule();
  more_threads_than_tiles();
  hostile_lists();
  fingerprints();
  weights_that_are_not_finite();
  std::printf("engine: bits %016llx\n", static_cast<unsigned long long>(all_bits));
  return check::report("engine");
}
