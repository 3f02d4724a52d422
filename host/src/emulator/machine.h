// The emulated machine: its assumptions, checks and counts.
//
// Bulk-synchronous: a program step is a barrier, an exchange, then computing on all tiles. Six workers of a tile take
// turns, so a tile's time is six times the bundles (issue slots) of its longest worker. Codelets report the bundles
// they spend (SPARSESNN_WORK in codelets/ipu/vertex.h), so that cycles follow the spikes that happen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "poplar/Program.hpp"

namespace sparsesnn::emulator {

// The machine's numbers. Sizes and rates are published or derived; those marked "assumed" are not measured on an IPU.
struct Parameters {
  std::size_t bytes_per_tile = 624 * 1024;
  double exchange_bytes_per_cycle = 4;     // a tile receives, and sends, per cycle
  double sync_cycles = 200;                // one barrier of one IPU; assumed
  double external_sync_cycles = 1330;      // one barrier over IPUs or with the host: 1 us at 1.33 GHz; assumed
  double link_bytes_per_cycle = 120;       // an IPU receives, and sends, over its links: 160 GB/s at 1.33 GHz
  double host_bytes_per_cycle = 9.4;       // from the host: 12.5 GB/s at 1.33 GHz; assumed
  double supervisor_cycles = 25;           // start of a vertex on its tile; poplibs charges 11, and 6 to 20 of set-up
  double worker_bundles = 30;              // start of a worker; poplibs charges 25 to 33
  std::size_t code_bytes = 24 * 1024;      // codelets and stacks on each tile in use; assumed
  std::size_t exchange_code_bytes = 512;   // of one exchange, on each tile that takes part; assumed
  std::size_t reserved_bytes = 16 * 1024;  // Poplar's own constants and counters; assumed
};

// When a compute set's vertices are run repeatedly to find faults (see checks.h). Static rules are always checked.
enum class Checks { never, first, always };

struct Options {
  Parameters parameters;
  Checks checks = Checks::first;
};

// The totals of all executions of one compute set or copy.
struct StepCount {
  std::string name;
  std::uint64_t executions = 0;
  double compute_cycles = 0, exchange_cycles = 0, sync_cycles = 0, link_cycles = 0, host_cycles = 0;
  std::uint64_t exchange_bytes = 0, link_bytes = 0, host_bytes = 0;
};

struct Report {
  std::vector<StepCount> steps;
  std::size_t n_vertices = 0, n_compute_sets = 0;
  std::vector<std::size_t> tile_bytes;  // everything on each tile
};

// A vertex, and the tile that runs it.
struct PlacedVertex {
  std::string compute_set, type;
  unsigned tile;
};

// The bundles that the current worker has spent; codelets add to it.
std::uint64_t& worker_bundles();

class Compiled;

class Machine {
 public:
  // `own_replicas`: those of this process; 0: all.
  Machine(const poplar::Graph& graph, poplar::ArrayRef<poplar::program::Program> programs, const Options& options,
          unsigned own_replicas = 0);
  ~Machine();
  void connect_stream(const std::string& handle, void* begin, void* end);
  void connect_callback(const std::string& handle, unsigned replica, std::function<void(void*)> f);
  void run(unsigned program);
  Report report() const;                       // of the first replica: all replicas do the same
  std::vector<PlacedVertex> vertices() const;  // likewise
  void reset_counts();
  unsigned own_replicas() const { return static_cast<unsigned>(replicas_.size()); }

 private:
  void run_replicas(const poplar::program::Program& program);
  std::vector<std::unique_ptr<Compiled>> replicas_;
  unsigned all_replicas_;
};

// Options of engines made from now on by this thread: Poplar's interface has no place for them.
Options& options_of_next_engine();

}  // namespace sparsesnn::emulator
