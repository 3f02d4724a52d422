// A graph made ready to run: memory, bound vertices, and the cost of each program step apart from computing.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph_data.h"
#include "machine.h"

namespace sparsesnn::emulator {

// Bytes between margins, at an address that is a multiple of `align` and of no higher power of two: the alignment that
// a field promises, and no more. A tile traps if code relies on more; here the sanitizer notices (cmake/ipu.cmake).
class Placed {
 public:
  Placed() = default;
  Placed(std::size_t n, unsigned align) : before_(sizeof(Line) + align), n_(n) {
    lines_.resize((before_ + n + 2 * sizeof(Line) - 1) / sizeof(Line));
    std::memset(base(), margin_byte, lines_.size() * sizeof(Line));
  }
  std::size_t size() const { return n_; }
  unsigned char* data() { return base() + before_; }
  const unsigned char* data() const { return base() + before_; }
  // Whether a margin was overwritten.
  bool is_damaged() const {
    const auto damaged = [](unsigned char x) { return x != margin_byte; };
    return std::any_of(base(), data(), damaged) ||
           std::any_of(data() + n_, base() + lines_.size() * sizeof(Line), damaged);
  }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  static constexpr unsigned char margin_byte = 0x5a;
  unsigned char* base() { return reinterpret_cast<unsigned char*>(lines_.data()); }
  const unsigned char* base() const { return reinterpret_cast<const unsigned char*>(lines_.data()); }

  std::vector<Line> lines_;
  std::size_t before_ = 0, n_ = 0;
};

// One region of a connected field. Data in one piece is used in place; otherwise it is gathered before and scattered
// after. In-place use is bulk-synchronous because no vertex of a compute set reads another's output.
struct Region {
  const Field* field;
  std::size_t n;
  std::vector<poplar::Piece> pieces;
  std::size_t slot;  // offset of {pointer, count} in the object, or in the list of its field
  std::vector<unsigned char> gathered;
  unsigned char* data = nullptr;

  std::size_t bytes() const { return n * field->type.bytes(); }
  bool in_place() const { return pieces.size() <= 1; }
};

// The {pointer, count} of which every field of poplar/Vertex.hpp consists.
struct Span {
  void* data;
  std::size_t n;
};

struct BoundVertex {
  const VertexClass* type;
  unsigned id, tile;
  std::vector<unsigned char> object;
  std::vector<Region> regions;
  std::vector<std::vector<Span>> lists;  // for fields that are lists of regions
  std::vector<Placed> state;

  // Points field spans at `data[k]` of region k.
  void point_at(const std::vector<unsigned char*>& data);
};

struct Cost {
  double exchange_cycles = 0, sync_cycles = 0, link_cycles = 0, host_cycles = 0;
  std::uint64_t exchange_bytes = 0, link_bytes = 0, host_bytes = 0;
};

struct TileWork {
  unsigned tile;
  std::vector<std::size_t> vertices;  // indices in ComputeStep::vertices
};

struct ComputeStep {
  std::string name;
  std::vector<BoundVertex> vertices;
  std::vector<TileWork> tiles;
  std::vector<unsigned> used_tiles;
  Cost cost;
  StepCount count;
  bool checked = false, marked = false;
};

// Which elements have been written; one bit each.
class Written {
 public:
  explicit Written(std::size_t n) : bits_((n + 63) / 64) {}
  bool get(std::size_t i) const { return bits_[i / 64] >> (i % 64) & 1; }
  void set(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end;) {
      if (i % 64 == 0 && end - i >= 64) {
        bits_[i / 64] = ~0ull;
        i += 64;
      } else {
        bits_[i / 64] |= 1ull << (i % 64);
        ++i;
      }
    }
  }

 private:
  std::vector<std::uint64_t> bits_;
};

class Compiled {
 public:
  Compiled(const poplar::Graph& graph, poplar::ArrayRef<poplar::program::Program> programs, const Options& options);
  void connect_stream(const std::string& handle, void* begin, void* end);
  void connect_callback(const std::string& handle, std::function<void(void*)> f);
  const poplar::program::Program& program(unsigned k) const;
  void run_program(const poplar::program::Program& program);
  // The addends of an all-reduce of the replicas, and its sum back.
  std::vector<float> read(const poplar::program::Node& node);
  void write(const poplar::program::Node& node, const std::vector<float>& values);
  Report report() const;
  std::vector<PlacedVertex> vertices() const;
  void reset_counts();

 private:
  friend class FaultFinder;

  // compile.cpp: the static rules
  void place_variables();
  void bind_vertices();
  void check_compute_set(const ComputeStep& step) const;
  void check_alignment(const BoundVertex& v, const Region& r) const;
  Cost exchange_cost(const std::vector<std::pair<unsigned, poplar::Piece>>& reads) const;
  void account_memory();
  std::vector<std::size_t> count_exchanges() const;
  void collect_copies(const poplar::program::Program& program);

  // machine.cpp: running
  const poplar::DataStream& find_stream(const std::string& handle) const;
  void execute(ComputeStep& step);
  double run_vertex(BoundVertex& v);
  void copy(const poplar::program::Node& node);
  void stream(const poplar::program::Node& node, bool to_device);
  StepCount& count_of(const poplar::program::Node& node);

  unsigned tile_of(const poplar::Piece& piece) const;
  template <class F>
  void by_tile(const poplar::Piece& piece, F&& f) const;
  unsigned char* address(const poplar::Piece& piece) {
    return memory_[piece.variable].get() + piece.begin * graph_->variables[piece.variable].type.bytes();
  }
  std::string region_name(const BoundVertex& v, const Region& r) const;

  std::shared_ptr<poplar::GraphData> graph_;
  std::vector<poplar::program::Program> programs_;
  Options options_;
  std::vector<std::unique_ptr<unsigned char[]>> memory_;
  std::vector<Written> written_;
  std::vector<ComputeStep> steps_;
  std::map<const poplar::program::Node*, std::pair<Cost, StepCount>> copies_;
  std::vector<const poplar::program::Node*> copy_order_;
  std::map<std::string, std::function<void(void*)>> streams_;
  std::vector<std::size_t> tile_bytes_;
};

// Runs one vertex repeatedly to find faults that no static rule can detect; see checks.cpp.
class FaultFinder {
 public:
  explicit FaultFinder(Compiled& compiled) : c_(compiled) {}
  void run(BoundVertex& v);

 private:
  using Image = std::vector<Placed>;
  Image image(const BoundVertex& v, int poison, int only_region) const;
  void compute(BoundVertex& v, Image& image, const std::vector<unsigned>& workers) const;
  Compiled& c_;
};

}  // namespace sparsesnn::emulator
