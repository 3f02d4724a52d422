// From a graph to an executable one: the rules that can be checked without running, memory, and exchange.
#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "compiled.h"

namespace sparsesnn::emulator {

using poplar::Piece;
using poplar::poplar_error;

namespace {

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

bool writes(Direction d) { return d == Direction::output || d == Direction::in_out; }

}  // namespace

void BoundVertex::point_at(const std::vector<unsigned char*>& data) {
  std::size_t list = 0;
  const Field* last = nullptr;
  for (std::size_t k = 0; k < regions.size(); ++k) {
    Region& r = regions[k];
    Span span{data[k], r.n};
    if (r.field->levels == 2) {
      if (r.field != last) list = 0;
      last = r.field;
      lists[static_cast<std::size_t>(r.field - type->fields.data())][list++] = span;
    } else {
      std::memcpy(&object[r.field->offset], &span, sizeof(span));
    }
  }
}

Compiled::Compiled(const poplar::Graph& graph, poplar::ArrayRef<poplar::program::Program> programs,
                   const Options& options)
    : graph_(graph.data()), programs_(programs.begin(), programs.end()), options_(options) {
  place_variables();
  bind_vertices();
  for (const ComputeStep& step : steps_) check_compute_set(step);
  for (const auto& program : programs_) collect_copies(program);
  account_memory();
}

std::string Compiled::region_name(const BoundVertex& v, const Region& r) const {
  std::string text = graph_->name_of(v.id) + ", field '" + r.field->name + "'";
  if (r.field->levels == 2) text += " [" + std::to_string(r.slot) + "]";
  if (!r.pieces.empty()) text += " (variable '" + graph_->variables[r.pieces[0].variable].name + "')";
  return text;
}

// Every element of every variable lies on one tile.
void Compiled::place_variables() {
  for (poplar::Variable& v : graph_->variables) {
    std::sort(v.mapping.begin(), v.mapping.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    std::size_t end = 0;
    for (const poplar::Mapping& m : v.mapping) {
      if (m.begin < end)
        throw poplar_error("variable '" + v.name + "': element " + std::to_string(m.begin) +
                           " is mapped twice, now to tile " + std::to_string(m.tile));
      if (m.begin > end) break;
      end = m.end;
    }
    if (end < v.n)
      throw poplar_error(std::string(v.is_constant ? "constant" : "variable") + " '" + v.name + "': elements from " +
                         std::to_string(end) + " of " + std::to_string(v.n) +
                         " are mapped to no tile; use setTileMapping");
    const std::size_t bytes = v.n * v.type.bytes();
    memory_.emplace_back(new unsigned char[bytes + 64]());
    if (v.is_constant) std::memcpy(memory_.back().get(), v.constant.data(), bytes);
    written_.emplace_back(v.n);
    if (v.is_constant) written_.back().set(0, v.n);
  }
}

template <class F>
void Compiled::by_tile(const Piece& piece, F&& f) const {
  const auto& mapping = graph_->variables[piece.variable].mapping;
  auto m = std::upper_bound(mapping.begin(), mapping.end(), piece.begin,
                            [](std::size_t at, const poplar::Mapping& x) { return at < x.begin; }) -
           1;
  for (std::size_t at = piece.begin; at < piece.end; ++m) {
    const std::size_t end = std::min(piece.end, m->end);
    f(m->tile, Piece{piece.variable, at, end}, *m);
    at = end;
  }
}

void Compiled::bind_vertices() {
  steps_.resize(graph_->compute_sets.size());
  for (std::size_t k = 0; k < steps_.size(); ++k) steps_[k].name = steps_[k].count.name = graph_->compute_sets[k];
  for (unsigned id = 0; id < graph_->vertices.size(); ++id) {
    const poplar::VertexData& data = graph_->vertices[id];
    if (data.tile < 0) throw poplar_error(graph_->name_of(id) + ": is mapped to no tile; use setTileMapping");
    BoundVertex v{data.type, id, static_cast<unsigned>(data.tile), {}, {}, {}, {}};
    v.object.assign(data.type->size, 0);
    v.lists.resize(data.type->fields.size());
    v.state.resize(data.type->fields.size());
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
      const Field& field = data.type->fields[f];
      const poplar::ConnectionData& c = data.fields[f];
      if (!c.set) throw poplar_error(graph_->name_of(id) + ", field '" + field.name + "': is not connected");
      if (field.direction == Direction::state) {
        v.state[f] = Placed(c.initial.size(), field.min_align);
        std::copy(c.initial.begin(), c.initial.end(), v.state[f].data());
        if (field.levels == 0) {
          std::memcpy(&v.object[field.offset], c.initial.data(), c.initial.size());
        } else {
          const Span span{v.state[f].data(), c.n_initial};
          std::memcpy(&v.object[field.offset], &span, sizeof(span));
        }
        continue;
      }
      for (std::size_t k = 0; k < c.regions.size(); ++k) {
        const poplar::Tensor& t = c.regions[k];
        v.regions.push_back({&field, t.numElements(), t.pieces(), k, {}, nullptr});
      }
      if (field.levels == 2) {
        v.lists[f].resize(c.regions.size());
        const Span span{v.lists[f].data(), v.lists[f].size()};
        std::memcpy(&v.object[field.offset], &span, sizeof(span));
      }
    }
    std::vector<unsigned char*> where;
    for (Region& r : v.regions) {
      check_alignment(v, r);
      if (r.in_place()) {
        r.data = r.pieces.empty() ? nullptr : address(r.pieces[0]);
      } else {
        r.gathered.resize(r.bytes());
        r.data = r.gathered.data();
      }
      where.push_back(r.data);
    }
    v.point_at(where);
    steps_[data.compute_set].vertices.push_back(std::move(v));
  }
  for (ComputeStep& step : steps_) {
    std::map<unsigned, std::vector<std::size_t>> tiles;
    std::vector<std::pair<unsigned, Piece>> reads;
    for (std::size_t k = 0; k < step.vertices.size(); ++k) {
      const BoundVertex& v = step.vertices[k];
      tiles[v.tile].push_back(k);
      for (const Region& r : v.regions)
        for (const Piece& p : r.pieces) reads.emplace_back(v.tile, p);
    }
    for (auto& [tile, vertices] : tiles) step.tiles.push_back({tile, std::move(vertices)});
    step.cost = exchange_cost(reads);
  }
}

// Written data lies on the vertex's own tile, in one piece, aligned: Poplar would otherwise copy it back and forth. The
// same holds for local inputs; remote ones arrive in a buffer, which is aligned.
void Compiled::check_alignment(const BoundVertex& v, const Region& r) const {
  bool remote = false;
  for (const Piece& p : r.pieces)
    by_tile(p, [&](unsigned tile, const Piece& part, const poplar::Mapping& chunk) {
      if (tile != v.tile) {
        remote = true;
        if (writes(r.field->direction))
          throw poplar_error(region_name(v, r) + ": writes elements " + std::to_string(part.begin) + " to " +
                             std::to_string(part.end) + ", which are on tile " + std::to_string(tile));
        return;
      }
      const std::size_t size = r.field->type.bytes();
      if (!remote && part.begin == r.pieces[0].begin && (part.begin - chunk.begin) * size % r.field->min_align)
        throw poplar_error(region_name(v, r) + ": begins " + std::to_string((part.begin - chunk.begin) * size) +
                           " bytes into its tile's part; the field needs multiples of " +
                           std::to_string(r.field->min_align));
    });
  if (!remote && !r.in_place() && writes(r.field->direction))
    throw poplar_error(region_name(v, r) + ": written data must be one piece; it is " +
                       std::to_string(r.pieces.size()));
  if (writes(r.field->direction))
    for (const Piece& p : r.pieces)
      if (graph_->variables[p.variable].is_constant) throw poplar_error(region_name(v, r) + ": writes a constant");
}

// One writer an element; no vertex reads data that another vertex, or another field of the same one, writes.
void Compiled::check_compute_set(const ComputeStep& step) const {
  struct Use {
    Piece piece;
    const BoundVertex* v;
    const Region* r;
  };
  std::vector<Use> writers;
  for (const BoundVertex& v : step.vertices)
    for (const Region& r : v.regions)
      if (writes(r.field->direction))
        for (const Piece& p : r.pieces) writers.push_back({p, &v, &r});
  const auto before = [](const Use& a, const Use& b) {
    return std::tie(a.piece.variable, a.piece.begin) < std::tie(b.piece.variable, b.piece.begin);
  };
  std::sort(writers.begin(), writers.end(), before);
  for (std::size_t k = 1; k < writers.size(); ++k) {
    const Use &a = writers[k - 1], &b = writers[k];
    if (a.piece.variable == b.piece.variable && b.piece.begin < a.piece.end)
      throw poplar_error(region_name(*b.v, *b.r) + ": writes element " + std::to_string(b.piece.begin) + ", as does " +
                         region_name(*a.v, *a.r));
  }
  for (const BoundVertex& v : step.vertices)
    for (const Region& r : v.regions) {
      if (r.field->direction != Direction::input) continue;
      for (const Piece& p : r.pieces) {
        const Use key{{p.variable, p.begin, p.end}, nullptr, nullptr};
        auto w = std::upper_bound(writers.begin(), writers.end(), key, before);
        if (w != writers.begin() && std::prev(w)->piece.variable == p.variable && std::prev(w)->piece.end > p.begin)
          --w;
        if (w != writers.end() && w->piece.variable == p.variable && w->piece.begin < p.end)
          throw poplar_error(region_name(v, r) + ": reads element " +
                             std::to_string(std::max(p.begin, w->piece.begin)) + ", which " +
                             region_name(*w->v, *w->r) + " writes in the same compute set");
      }
    }
}

// Tile k reads piece p. A tile receives remote data once, however many of its vertices read it, and data is sent once
// to each device with a receiver: tiles of one device may all take the same word off the exchange. Pieces that overlap
// without being equal are counted as if they were distinct.
Cost Compiled::exchange_cost(const std::vector<std::pair<unsigned, Piece>>& reads) const {
  const unsigned per_device = graph_->target.getTilesPerIPU(), n_devices = graph_->target.getNumIPUs();
  struct Move {
    Piece piece;
    unsigned source, sink;
  };
  std::vector<Move> moves;
  for (const auto& [sink, piece] : reads)
    by_tile(piece, [&, to = sink](unsigned source, const Piece& part, const poplar::Mapping&) {
      if (source != to) moves.push_back({part, source, to});
    });
  const auto key = [](const Move& m) { return std::tie(m.piece.variable, m.piece.begin, m.piece.end, m.sink); };
  std::sort(moves.begin(), moves.end(), [&](const Move& a, const Move& b) { return key(a) < key(b); });
  moves.erase(std::unique(moves.begin(), moves.end(), [&](const Move& a, const Move& b) { return key(a) == key(b); }),
              moves.end());
  std::vector<std::uint64_t> in(graph_->target.getNumTiles()), out(in.size()), link_in(n_devices), link_out(n_devices);
  Cost cost;
  for (std::size_t k = 0; k < moves.size(); ++k) {
    const Move& m = moves[k];
    const std::uint64_t bytes =
        round_up((m.piece.end - m.piece.begin) * graph_->variables[m.piece.variable].type.bytes(), 4);
    in[m.sink] += bytes;
    cost.exchange_bytes += bytes;
    const unsigned from = m.source / per_device, to = m.sink / per_device;
    // sinks ascend, so those of one device are neighbors
    const bool first = !k || moves[k - 1].piece.variable != m.piece.variable ||
                       moves[k - 1].piece.begin != m.piece.begin || moves[k - 1].piece.end != m.piece.end ||
                       moves[k - 1].sink / per_device != to;
    if (!first) continue;
    out[m.source] += bytes;
    if (from != to) {
      link_out[from] += bytes;
      link_in[to] += bytes;
      cost.link_bytes += bytes;
    }
  }
  std::uint64_t most = 0, most_link = 0;
  for (std::size_t k = 0; k < in.size(); ++k) most = std::max({most, in[k], out[k]});
  for (unsigned d = 0; d < n_devices; ++d) most_link = std::max({most_link, link_in[d], link_out[d]});
  const Parameters& p = options_.parameters;
  cost.exchange_cycles = static_cast<double>(most) / p.exchange_bytes_per_cycle;
  cost.link_cycles = static_cast<double>(most_link) / p.link_bytes_per_cycle;
  cost.sync_cycles = cost.link_bytes ? p.external_sync_cycles : p.sync_cycles;
  return cost;
}

void Compiled::collect_copies(const poplar::program::Program& program) {
  using Kind = poplar::program::Node::Kind;
  const poplar::program::Node& node = *program.node();
  for (const auto& child : node.children) collect_copies(child);
  const bool moves = node.kind == Kind::copy || node.kind == Kind::to_device || node.kind == Kind::to_host ||
                     (node.kind == Kind::all_reduce && graph_->n_replicas > 1);
  if (!moves || copies_.count(&node)) return;
  Cost cost;
  if (node.kind == Kind::copy) {
    std::vector<std::pair<unsigned, Piece>> reads;
    std::size_t k = 0, taken = 0;
    for (const Piece& sink : node.sink.pieces())
      by_tile(sink, [&](unsigned tile, const Piece& part, const poplar::Mapping&) {
        for (std::size_t left = part.end - part.begin; left;) {
          const Piece& source = node.source.pieces()[k];
          const std::size_t n = std::min(left, source.end - source.begin - taken);
          reads.emplace_back(tile, Piece{source.variable, source.begin + taken, source.begin + taken + n});
          left -= n;
          taken += n;
          if (taken == source.end - source.begin) ++k, taken = 0;
        }
      });
    cost = exchange_cost(reads);
  } else if (node.kind == Kind::all_reduce) {  // a ring: each IPU sends 2·(R - 1) parts, each 1 / R of its data
    const double n = graph_->n_replicas, bytes = static_cast<double>(node.source.numElements()) * sizeof(float);
    cost.link_bytes = static_cast<std::uint64_t>(2 * (n - 1) * bytes);  // over all replicas
    cost.link_cycles = 2 * (n - 1) / n * bytes / graph_->target.getNumIPUs() / options_.parameters.link_bytes_per_cycle;
    cost.sync_cycles = 2 * (n - 1) * options_.parameters.external_sync_cycles;
  } else {
    const poplar::Tensor& t = node.kind == Kind::to_device ? node.sink : node.source;
    cost.host_bytes = t.numElements() * t.elementType().bytes();
    cost.host_cycles =
        static_cast<double>(cost.host_bytes) / (options_.parameters.host_bytes_per_cycle * graph_->target.getNumIPUs());
    cost.sync_cycles = options_.parameters.external_sync_cycles;
  }
  StepCount count;
  count.name = node.name;
  copies_.emplace(&node, std::make_pair(cost, count));
  copy_order_.push_back(&node);
}

// The number of compute sets and copies in which each tile takes part: it computes, or holds data that is read or
// written.
std::vector<std::size_t> Compiled::count_exchanges() const {
  std::vector<std::size_t> found(graph_->target.getNumTiles());
  std::vector<unsigned> last(found.size(), ~0u);
  unsigned exchange = 0;
  const auto takes_part = [&](unsigned tile) {
    if (last[tile] != exchange) last[tile] = exchange, ++found[tile];
  };
  const auto holds = [&](const Piece& piece) {
    by_tile(piece, [&](unsigned tile, const Piece&, const poplar::Mapping&) { takes_part(tile); });
  };
  for (const ComputeStep& step : steps_) {
    for (const BoundVertex& v : step.vertices) {
      takes_part(v.tile);
      for (const Region& r : v.regions)
        for (const Piece& piece : r.pieces) holds(piece);
    }
    ++exchange;
  }
  for (const auto* node : copy_order_) {
    for (const poplar::Tensor* t : {&node->source, &node->sink})
      for (const Piece& piece : t->pieces()) holds(piece);
    ++exchange;
  }
  return found;
}

// Variables, vertex state, the largest buffer of one exchange, and code must fit into a tile.
void Compiled::account_memory() {
  const Parameters& p = options_.parameters;
  const std::size_t n_tiles = graph_->target.getNumTiles();
  tile_bytes_.assign(n_tiles, 0);
  std::vector<std::pair<std::size_t, const std::string*>> largest(n_tiles, {0, nullptr});
  for (const poplar::Variable& v : graph_->variables) {
    for (const poplar::Mapping& m : v.mapping) {
      const std::size_t bytes = round_up((m.end - m.begin) * v.type.bytes(), 8);
      tile_bytes_[m.tile] += bytes;
      if (bytes > largest[m.tile].first) largest[m.tile] = {bytes, &v.name};
    }
  }
  std::vector<std::size_t> buffer(n_tiles), one(n_tiles);
  for (const ComputeStep& step : steps_) {
    for (const TileWork& work : step.tiles) one[work.tile] = 0;
    for (const BoundVertex& v : step.vertices) {
      for (const Field& f : v.type->fields) tile_bytes_[v.tile] += f.device_bytes;
      for (const auto& state : v.state) tile_bytes_[v.tile] += state.size() > 4 ? state.size() : 0;
      for (const Region& r : v.regions) {
        if (r.field->levels == 2) tile_bytes_[v.tile] += 4;
        for (const Piece& piece : r.pieces)
          by_tile(piece, [&](unsigned tile, const Piece& part, const poplar::Mapping&) {
            if (tile != v.tile) one[v.tile] += (part.end - part.begin) * r.field->type.bytes();
          });
      }
    }
    for (const TileWork& work : step.tiles) buffer[work.tile] = std::max(buffer[work.tile], one[work.tile]);
  }
  const std::vector<std::size_t> exchanges = count_exchanges();
  for (std::size_t tile = 0; tile < n_tiles; ++tile) {
    if (!tile_bytes_[tile]) continue;
    tile_bytes_[tile] += buffer[tile] + p.code_bytes + p.reserved_bytes + p.exchange_code_bytes * exchanges[tile];
    if (tile_bytes_[tile] > p.bytes_per_tile)
      throw poplar_error("tile " + std::to_string(tile) + " needs " + std::to_string(tile_bytes_[tile]) +
                         " bytes of its " + std::to_string(p.bytes_per_tile) + "; the largest variable on it is '" +
                         (largest[tile].second ? *largest[tile].second : "") + "' with " +
                         std::to_string(largest[tile].first) + ", exchange buffers take " +
                         std::to_string(buffer[tile]) + "; use more tiles, a smaller batch or fewer steps");
  }
}

}  // namespace sparsesnn::emulator
