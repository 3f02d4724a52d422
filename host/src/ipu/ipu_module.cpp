// sparsesnn._ipu: the Python bindings of the IPU program, on the emulated machine or, built against the SDK, on IPUs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "device.h"
#include "parts.h"
#include "program.h"
#ifndef SPARSESNN_POPLAR_SDK
#include "host/src/emulator/machine.h"
#include "host/src/emulator/work.h"
#include "host/src/machine/thread_pool.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn::ipu {
namespace {

using Tiles = std::vector<std::tuple<unsigned, unsigned, unsigned>>;

template <class T>
std::vector<T> ranges(const Tiles& rows) {
  std::vector<T> found;
  for (const auto& [tile, first, n] : rows) found.push_back({tile, first, n});
  return found;
}

// Constants, steps, results.
using FormulaTuple = std::tuple<std::vector<float>, Tiles, std::vector<unsigned>>;

Formula formula(const FormulaTuple& given) {
  return {std::get<0>(given), ranges<FormulaStep>(std::get<1>(given)), std::get<2>(given)};
}

nb::object array(nb::handle owner, Buffer& buffer) {
  const std::size_t n = buffer.n;
  switch (buffer.type) {
    case Buffer::Type::float32:
      return nb::cast(nb::ndarray<nb::numpy, float>(buffer.data(), 1, &n, owner));
    case Buffer::Type::uint32:
      return nb::cast(nb::ndarray<nb::numpy, std::uint32_t>(buffer.data(), 1, &n, owner));
    case Buffer::Type::uint16:
    case Buffer::Type::float16:  // as bits; Python has a view for them
      return nb::cast(nb::ndarray<nb::numpy, std::uint16_t>(buffer.data(), 1, &n, owner));
  }
  return nb::none();
}

#ifndef SPARSESNN_POPLAR_SDK
emulator::Options options(const std::string& checks, std::size_t bytes_per_tile, double exchange_bytes_per_cycle,
                          double sync_cycles, double external_sync_cycles, double link_bytes_per_cycle,
                          double host_bytes_per_cycle) {
  emulator::Options o;
  if (checks == "always")
    o.checks = emulator::Checks::always;
  else if (checks == "first")
    o.checks = emulator::Checks::first;
  else if (checks == "never")
    o.checks = emulator::Checks::never;
  else
    throw std::invalid_argument("checks is '" + checks + "'; allowed: always, first, never");
  emulator::Parameters& p = o.parameters;
  p.bytes_per_tile = bytes_per_tile;
  p.exchange_bytes_per_cycle = exchange_bytes_per_cycle;
  p.sync_cycles = sync_cycles;
  p.external_sync_cycles = external_sync_cycles;
  p.link_bytes_per_cycle = link_bytes_per_cycle;
  p.host_bytes_per_cycle = host_bytes_per_cycle;
  return o;
}

nb::dict report(Program& program) {
  const emulator::Report r = program.parts().engine.machine().report();
  nb::list steps;
  for (const emulator::StepCount& s : r.steps) {
    nb::dict step;
    step["name"] = s.name;
    step["executions"] = s.executions;
    step["compute_cycles"] = s.compute_cycles;
    step["exchange_cycles"] = s.exchange_cycles;
    step["sync_cycles"] = s.sync_cycles;
    step["link_cycles"] = s.link_cycles;
    step["host_cycles"] = s.host_cycles;
    step["exchange_bytes"] = s.exchange_bytes;
    step["link_bytes"] = s.link_bytes;
    step["host_bytes"] = s.host_bytes;
    steps.append(step);
  }
  nb::dict result;
  result["steps"] = steps;
  result["n_vertices"] = r.n_vertices;
  result["n_compute_sets"] = r.n_compute_sets;
  result["tile_bytes"] = r.tile_bytes;
  return result;
}
#endif

}  // namespace
}  // namespace sparsesnn::ipu

NB_MODULE(SPARSESNN_IPU_MODULE, m) {
  using namespace sparsesnn::ipu;
  nb::set_leak_warnings(false);
  m.doc() = "The IPU program; use it through sparsesnn.ipu.";

  nb::class_<Population>(m, "Population", "One population of a plan; see host/src/ipu/spec.h.")
      .def(
          "__init__",
          [](Population* self, std::string name, const std::string& shape, bool fires, unsigned n, unsigned capacity,
             const Tiles& shards, const Tiles& collectors, bool detach_reset, unsigned surrogate, float slope,
             bool fixed, bool bias, unsigned kept, const std::tuple<unsigned, unsigned>& operations,
             std::vector<float> entries,
             const std::vector<std::tuple<std::string, bool, bool, float, float>>& parameters, const Tiles& terms,
             const FormulaTuple& entries_of_parameters, const FormulaTuple& d_parameters) {
            new (self) Population{std::move(name),
                                  shape.empty() ? nullptr : &shape_named(shape),
                                  fires,
                                  n,
                                  capacity,
                                  ranges<Shard>(shards),
                                  ranges<Collector>(collectors),
                                  surrogate,
                                  detach_reset,
                                  fixed,
                                  bias,
                                  slope,
                                  0,
                                  kept,
                                  std::get<0>(operations),
                                  std::get<1>(operations),
                                  std::move(entries),
                                  ranges<EntryTerm>(terms),
                                  {},
                                  formula(entries_of_parameters),
                                  formula(d_parameters),
                                  {}};
            for (const auto& [parameter, trained, shared, low, high] : parameters)
              self->parameters.push_back({parameter, trained, shared, low, high});
          },
          nb::kw_only(), "name"_a, "shape"_a, "fires"_a, "n"_a, "capacity"_a, "shards"_a, "collectors"_a,
          "detach_reset"_a, "surrogate"_a, "slope"_a, "fixed"_a, "bias"_a, "kept"_a, "operations"_a, "entries"_a,
          "parameters"_a, "terms"_a, "entries_of_parameters"_a, "d_parameters"_a);

  nb::class_<Connection>(m, "Connection", "One connection: indices of pre and post, delay, reducers.")
      .def(
          "__init__",
          [](Connection* self, unsigned pre, unsigned post, unsigned delay,
             const std::vector<std::tuple<unsigned, unsigned, unsigned, unsigned, unsigned>>& reducers) {
            new (self) Connection{pre, post, delay, {}};
            for (const auto& [tile, shard, n_shards, sample, n_samples] : reducers)
              self->reducers.push_back({tile, shard, n_shards, sample, n_samples});
          },
          nb::kw_only(), "pre"_a, "post"_a, "delay"_a, "reducers"_a);

  nb::class_<ProgramSpec>(m, "Spec", "The complete description of a program for the graph builder.")
      .def(
          "__init__",
          [](ProgramSpec* self, unsigned devices, unsigned tiles, unsigned n_samples, unsigned n_steps, int optimizer,
             bool momentum, unsigned decoding, unsigned n_classes, bool loops_rounds, bool half_weights,
             unsigned replicas, unsigned first_replica, unsigned own_replicas, unsigned keep_every,
             std::vector<Population> populations, std::vector<Connection> connections,
             const std::tuple<float, float, float, float>& regularizer) {
            new (self) ProgramSpec{devices,
                                   tiles,
                                   n_samples,
                                   n_steps,
                                   static_cast<Optimizer>(optimizer),
                                   momentum,
                                   decoding,
                                   n_classes,
                                   loops_rounds,
                                   half_weights,
                                   replicas,
                                   first_replica,
                                   own_replicas,
                                   keep_every,
                                   std::move(populations),
                                   std::move(connections),
                                   std::get<0>(regularizer),
                                   std::get<1>(regularizer),
                                   std::get<2>(regularizer),
                                   std::get<3>(regularizer)};
          },
          nb::kw_only(), "devices"_a, "tiles"_a, "n_samples"_a, "n_steps"_a, "optimizer"_a, "momentum"_a, "decoding"_a,
          "n_classes"_a, "loops_rounds"_a, "half_weights"_a, "replicas"_a, "first_replica"_a, "own_replicas"_a,
          "keep_every"_a, "populations"_a, "connections"_a, "regularizer"_a);

#ifndef SPARSESNN_POPLAR_SDK
  nb::class_<sparsesnn::emulator::Options>(m, "MachineOptions", "Numbers of the emulated machine, and its checks.")
      .def(
          "__init__",
          [](sparsesnn::emulator::Options* self, const std::string& checks, std::size_t bytes_per_tile,
             double exchange_bytes_per_cycle, double sync_cycles, double external_sync_cycles,
             double link_bytes_per_cycle, double host_bytes_per_cycle) {
            new (self)
                sparsesnn::emulator::Options(options(checks, bytes_per_tile, exchange_bytes_per_cycle, sync_cycles,
                                                     external_sync_cycles, link_bytes_per_cycle, host_bytes_per_cycle));
          },
          nb::kw_only(), "checks"_a, "bytes_per_tile"_a, "exchange_bytes_per_cycle"_a, "sync_cycles"_a,
          "external_sync_cycles"_a, "link_bytes_per_cycle"_a, "host_bytes_per_cycle"_a);
#endif

  nb::class_<Program>(m, "Program", "A compiled IPU program with its host arrays.")
#ifndef SPARSESNN_POPLAR_SDK
      .def(
          "__init__",
          [](Program* self, const ProgramSpec& spec, const sparsesnn::emulator::Options& machine) {
            sparsesnn::emulator::options_of_next_engine() = machine;
            new (self) Program(spec, DeviceKind::ipu_model, "");
          },
          "spec"_a, "machine"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("report", &report, "Cycles, bytes and memory of the emulated machine since the last reset_counts.")
      .def(
          "vertices",
          [](Program& self) {
            nb::list found;
            for (const auto& [set, type, tile] : self.parts().engine.machine().vertices())
              found.append(nb::make_tuple(set, type, tile));
            return found;
          },
          "Compute set, class and tile of every vertex.")
      .def("reset_counts", [](Program& self) { self.parts().engine.machine().reset_counts(); })
#else
      .def(
          "__init__",
          [](Program* self, const ProgramSpec& spec, const std::string& device, const std::string& codelets) {
            const DeviceKind kind = device == "poprun" ? DeviceKind::ipu_of_poprun
                                    : device == "ipu"  ? DeviceKind::ipu
                                                       : DeviceKind::ipu_model;
            new (self) Program(spec, kind, codelets);
          },
          "spec"_a, "device"_a, "codelets"_a, nb::call_guard<nb::gil_scoped_release>())
#endif
      .def("run", &Program::run, "program"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Runs 'load', 'train', 'infer', 'save' or 'lists'.")
      .def(
          "array",
          [](nb::handle_t<Program> self, const std::string& name) {
            return array(self, nb::cast<Program&>(self).buffer(name));
          },
          "name"_a, "The host's memory of a stream, as a flat NumPy array.")
      .def("names", &Program::names);

#ifdef SPARSESNN_POPLAR_SDK
  m.attr("has_sdk") = true;
  // Before mpi4py ends MPI, through which processes of PopRun communicate.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&sparsesnn::ipu::end_processes));
#else
  m.attr("has_sdk") = false;
  m.def("set_num_threads", &sparsesnn::set_num_threads, "n"_a, "Number of threads that share the emulation.");
#endif
}
