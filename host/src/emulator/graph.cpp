// Tensors, graphs and programs: everything that happens before an engine is made.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "gcl/Collectives.hpp"
#include "graph_data.h"
#include "poplar/Program.hpp"

namespace poplar {
namespace {

std::size_t product(ArrayRef<std::size_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::string text_of(ArrayRef<std::size_t> shape) {
  std::string text = "[";
  for (std::size_t k = 0; k < shape.size(); ++k) text += (k ? ", " : "") + std::to_string(shape[k]);
  return text + "]";
}

void append(std::vector<Piece>& pieces, const Piece& piece) {
  if (piece.begin == piece.end) return;
  if (!pieces.empty() && pieces.back().variable == piece.variable && pieces.back().end == piece.begin)
    pieces.back().end = piece.end;
  else
    pieces.push_back(piece);
}

}  // namespace

// ---- tensors -------------------------------------------------------------------------------------------------------

std::size_t Tensor::numElements() const { return product(shape_); }

Tensor Tensor::reshape(ArrayRef<std::size_t> shape) const {
  if (product(shape) != numElements())
    throw poplar_error("reshape: " + text_of(shape_) + " has another number of elements than " + text_of(shape));
  return Tensor(type_, {shape.begin(), shape.end()}, pieces_);
}

Tensor Tensor::slice(std::size_t begin, std::size_t end, unsigned dimension) const {
  if (dimension >= rank() || begin > end || end > shape_[dimension])
    throw poplar_error("slice: " + std::to_string(begin) + " to " + std::to_string(end) + " of dimension " +
                       std::to_string(dimension) + " of a tensor " + text_of(shape_));
  std::size_t outer = 1, inner = 1;
  for (unsigned k = 0; k < dimension; ++k) outer *= shape_[k];
  for (unsigned k = dimension + 1; k < rank(); ++k) inner *= shape_[k];
  const std::size_t row = shape_[dimension] * inner;
  std::vector<Piece> pieces;
  std::size_t k = 0, passed = 0;  // pieces before k hold `passed` elements
  for (std::size_t o = 0; o < outer; ++o) {
    std::size_t at = o * row + begin * inner;
    const std::size_t stop = o * row + end * inner;
    while (at < stop) {
      while (passed + pieces_[k].end - pieces_[k].begin <= at) passed += pieces_[k].end - pieces_[k].begin, ++k;
      const Piece& p = pieces_[k];
      const std::size_t from = p.begin + (at - passed), n = std::min(stop - at, p.end - from);
      append(pieces, {p.variable, from, from + n});
      at += n;
    }
  }
  std::vector<std::size_t> shape = shape_;
  shape[dimension] = end - begin;
  return Tensor(type_, shape, pieces);
}

Tensor Tensor::reinterpret(const Type& type) const {
  if (type.bytes() != type_.bytes())
    throw poplar_error("reinterpret: " + type_.toString() + " has another size than " + type.toString());
  return Tensor(type, shape_, pieces_);
}

Tensor concat(ArrayRef<Tensor> tensors, unsigned dimension) {
  if (tensors.empty()) throw poplar_error("concat: no tensors");
  std::vector<std::size_t> shape = tensors[0].shape();
  if (dimension >= shape.size())
    throw poplar_error("concat: dimension is " + std::to_string(dimension) + " of tensors " + text_of(shape));
  std::size_t outer = 1;
  for (unsigned k = 0; k < dimension; ++k) outer *= shape[k];
  shape[dimension] = 0;
  for (const Tensor& t : tensors) {
    std::vector<std::size_t> other = t.shape();
    if (other.size() == shape.size()) {
      shape[dimension] += other[dimension];
      other[dimension] = shape[dimension];
    }
    if (other != shape || t.elementType() != tensors[0].elementType())
      throw poplar_error("concat: a tensor " + text_of(t.shape()) + " of " + t.elementType().toString() +
                         " does not fit " + text_of(tensors[0].shape()) + " of " + tensors[0].elementType().toString());
  }
  std::vector<Piece> pieces;
  struct Reader {  // of one tensor: the next piece, and the number of its elements already read
    std::size_t piece = 0, taken = 0;
  };
  std::vector<Reader> readers(tensors.size());
  for (std::size_t o = 0; o < outer; ++o)
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      Reader& r = readers[k];
      for (std::size_t left = tensors[k].numElements() / outer; left;) {
        const Piece& p = tensors[k].pieces()[r.piece];
        const std::size_t n = std::min(left, p.end - p.begin - r.taken);
        append(pieces, {p.variable, p.begin + r.taken, p.begin + r.taken + n});
        left -= n;
        r.taken += n;
        if (r.taken == p.end - p.begin) ++r.piece, r.taken = 0;
      }
    }
  return Tensor(tensors[0].elementType(), shape, pieces);
}

// ---- graphs --------------------------------------------------------------------------------------------------------

Graph::Graph(const Target& target, replication_factor replicas) {
  const unsigned n = replicas.count;
  if (!n || target.getNumIPUs() % n)
    throw poplar_error(std::to_string(n) + " replicas do not divide " + std::to_string(target.getNumIPUs()) + " IPUs");
  data_ = std::make_shared<GraphData>(Target(target.getNumIPUs() / n, target.getTilesPerIPU()), n);
}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

const Target& Graph::getTarget() const { return data_->target; }
unsigned Graph::getReplicationFactor() const { return data_->n_replicas; }

bool Graph::addCodelets(StringRef file) {
  const std::string name = file;
  const auto ends = [&](const std::string& suffix) {
    return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
  };
  if (!ends(".gp") && !ends(".cpp")) throw poplar_error("addCodelets: '" + name + "' is neither .gp nor .cpp");
  return true;
}

Tensor Graph::addVariable(const Type& type, ArrayRef<std::size_t> shape, const DebugContext& name) {
  const std::size_t n = product(shape);
  data_->variables.push_back({type, n, name.getPathName(), {}, {}, false});
  std::vector<Piece> pieces;
  append(pieces, {static_cast<unsigned>(data_->variables.size() - 1), 0, n});
  return Tensor(type, {shape.begin(), shape.end()}, pieces);
}

Tensor Graph::constant(const Type& type, const Type& given, ArrayRef<std::size_t> shape, const void* values,
                       std::size_t n, const DebugContext& name) {
  if (type != given || (n != product(shape) && n != 1))
    throw poplar_error("constant '" + name.getPathName() + "': " + std::to_string(n) + " values of " +
                       given.toString() + " for " + text_of(shape) + " of " + type.toString());
  const Tensor t = addVariable(type, shape, name);
  Variable& v = data_->variables.back();
  v.is_constant = true;
  v.constant.resize(v.n * type.bytes());
  for (std::size_t k = 0; k < v.n; ++k)
    std::memcpy(&v.constant[k * type.bytes()],
                static_cast<const unsigned char*>(values) + (n == 1 ? 0 : k) * type.bytes(), type.bytes());
  return t;
}

void Graph::setTileMapping(const Tensor& tensor, unsigned tile) {
  for (const Piece& p : tensor.pieces()) {
    if (tile >= data_->target.getNumTiles())
      throw poplar_error("variable '" + data_->variables[p.variable].name + "' is mapped to tile " +
                         std::to_string(tile) + "; there are " + std::to_string(data_->target.getNumTiles()));
    data_->variables[p.variable].mapping.push_back({p.begin, p.end, tile});
  }
}

void Graph::setTileMapping(VertexRef vertex, unsigned tile) {
  if (tile >= data_->target.getNumTiles())
    throw poplar_error(data_->name_of(vertex.getId()) + " is mapped to tile " + std::to_string(tile) + "; there are " +
                       std::to_string(data_->target.getNumTiles()));
  data_->vertices.at(vertex.getId()).tile = tile;
}

ComputeSet Graph::addComputeSet(const DebugContext& name) {
  data_->compute_sets.push_back(name.getPathName());
  return ComputeSet(static_cast<unsigned>(data_->compute_sets.size() - 1));
}

VertexRef Graph::addVertex(ComputeSet compute_set, StringRef vertex_class) {
  const auto* type = sparsesnn::emulator::find_class(vertex_class);
  if (!type) {
    std::string known;
    for (const std::string& name : sparsesnn::emulator::class_names()) known += (known.empty() ? "" : ", ") + name;
    throw poplar_error("there is no vertex '" + vertex_class.str() + "'; there are: " + known);
  }
  data_->vertices.push_back({type, compute_set.getId(), -1, std::vector<ConnectionData>(type->fields.size())});
  return VertexRef(static_cast<unsigned>(data_->vertices.size() - 1));
}

std::string GraphData::name_of(unsigned vertex) const {
  const VertexData& v = vertices.at(vertex);
  return "vertex " + std::to_string(vertex) + " (" + v.type->name + ", compute set '" + compute_sets.at(v.compute_set) +
         "', " + (v.tile < 0 ? "no tile" : "tile " + std::to_string(v.tile)) + ")";
}

ConnectionData& GraphData::field(const FieldRef& ref, const sparsesnn::emulator::Field** found) {
  VertexData& v = vertices.at(ref.vertex());
  *found = v.type->find(ref.name());
  if (!*found) {
    std::string known;
    for (const auto& f : v.type->fields) known += (known.empty() ? "" : ", ") + f.name;
    throw poplar_error(name_of(ref.vertex()) + ": no field '" + ref.name() + "'; there are: " + known);
  }
  ConnectionData& c = v.fields[static_cast<std::size_t>(*found - v.type->fields.data())];
  if (c.set) throw poplar_error(name_of(ref.vertex()) + ", field '" + ref.name() + "': connected twice");
  c.set = true;
  return c;
}

void Graph::connect(FieldRef ref, const Tensor& tensor) {
  const sparsesnn::emulator::Field* f;
  ConnectionData& c = data_->field(ref, &f);
  const std::string where = data_->name_of(ref.vertex()) + ", field '" + ref.name() + "'";
  if (f->direction == sparsesnn::emulator::Direction::state)
    throw poplar_error(where + ": is vertex state; use setInitialValue");
  if (f->levels == 2) throw poplar_error(where + ": is a list of regions; connect a list of tensors");
  if (f->levels == 0 ? tensor.numElements() != 1 : tensor.rank() != 1)
    throw poplar_error(where + ": takes " + (f->levels ? "one dimension" : "one element") + "; the tensor is " +
                       text_of(tensor.shape()));
  if (tensor.elementType() != f->type)
    throw poplar_error(where + ": holds " + f->type.toString() + "; the tensor holds " +
                       tensor.elementType().toString());
  c.regions = {tensor};
}

void Graph::connect(FieldRef ref, ArrayRef<Tensor> tensors) {
  const sparsesnn::emulator::Field* f;
  ConnectionData& c = data_->field(ref, &f);
  const std::string where = data_->name_of(ref.vertex()) + ", field '" + ref.name() + "'";
  if (f->levels != 2 || f->direction == sparsesnn::emulator::Direction::state)
    throw poplar_error(where + ": is not a list of regions; connect one tensor");
  for (const Tensor& t : tensors) {
    if (t.rank() != 1) throw poplar_error(where + ": takes one dimension a region; one is " + text_of(t.shape()));
    if (t.elementType() != f->type)
      throw poplar_error(where + ": holds " + f->type.toString() + "; a tensor holds " + t.elementType().toString());
  }
  c.regions.assign(tensors.begin(), tensors.end());
}

void Graph::initial(FieldRef ref, const Type& type, const void* values, std::size_t n) {
  const sparsesnn::emulator::Field* f;
  ConnectionData& c = data_->field(ref, &f);
  const std::string where = data_->name_of(ref.vertex()) + ", field '" + ref.name() + "'";
  if (f->direction != sparsesnn::emulator::Direction::state)
    throw poplar_error(where + ": is not vertex state; connect a tensor");
  if (type != f->type) throw poplar_error(where + ": holds " + f->type.toString() + "; given: " + type.toString());
  if (f->levels == 0 && n != 1) throw poplar_error(where + ": takes one number; given: " + std::to_string(n));
  c.initial.resize(n * type.bytes());
  std::memcpy(c.initial.data(), values, c.initial.size());
  c.n_initial = n;
}

DataStream Graph::addHostToDeviceFIFO(StringRef handle, const Type& type, std::size_t n) {
  data_->streams.emplace_back(handle, type, n, true);
  return data_->streams.back();
}

DataStream Graph::addDeviceToHostFIFO(StringRef handle, const Type& type, std::size_t n) {
  data_->streams.emplace_back(handle, type, n, false);
  return data_->streams.back();
}

// ---- programs ------------------------------------------------------------------------------------------------------

namespace program {
namespace {

std::shared_ptr<Node> make_node(Node::Kind kind, const DebugContext& name) {
  auto n = std::make_shared<Node>();
  n->kind = kind;
  n->name = name.getPathName();
  return n;
}

void check_copy(const Type& from, std::size_t n_from, const Type& to, std::size_t n_to, const DebugContext& name) {
  if (from != to || n_from != n_to)
    throw poplar_error("copy '" + name.getPathName() + "': from " + std::to_string(n_from) + " of " + from.toString() +
                       " to " + std::to_string(n_to) + " of " + to.toString());
}

}  // namespace

Execute::Execute(ComputeSet compute_set, const DebugContext& name) {
  auto n = make_node(Node::Kind::execute, name);
  n->compute_set = compute_set;
  node_ = n;
}

Copy::Copy(Tensor source, Tensor sink, bool, const DebugContext& name) {
  check_copy(source.elementType(), source.numElements(), sink.elementType(), sink.numElements(), name);
  auto n = make_node(Node::Kind::copy, name);
  n->source = std::move(source);
  n->sink = std::move(sink);
  node_ = n;
}

Copy::Copy(DataStream source, Tensor sink, bool, const DebugContext& name) {
  check_copy(source.elementType(), source.numElements(), sink.elementType(), sink.numElements(), name);
  auto n = make_node(Node::Kind::to_device, name);
  n->stream = std::move(source);
  n->sink = std::move(sink);
  node_ = n;
}

Copy::Copy(Tensor source, DataStream sink, bool, const DebugContext& name) {
  check_copy(source.elementType(), source.numElements(), sink.elementType(), sink.numElements(), name);
  auto n = make_node(Node::Kind::to_host, name);
  n->source = std::move(source);
  n->stream = std::move(sink);
  node_ = n;
}

Repeat::Repeat(unsigned count, const Program& body, const DebugContext& name) {
  auto n = make_node(Node::Kind::repeat, name);
  n->count = count;
  n->children = {body};
  node_ = n;
}

Sync::Sync(SyncType type, const DebugContext& name) {
  auto n = make_node(Node::Kind::sync, name);
  n->sync = type;
  node_ = n;
}

}  // namespace program
}  // namespace poplar

namespace gcl {

void allReduceInPlaceCrossReplica(poplar::Graph& graph, poplar::Tensor& data, CollectiveOperator,
                                  poplar::program::Sequence& program, const CommGroup& group,
                                  const poplar::DebugContext& name, const poplar::OptionFlags&) {
  if (group.replicaGroupSize() != 0 || data.elementType() != poplar::FLOAT)
    throw poplar::poplar_error("all-reduce '" + name.getPathName() + "': emulated: floats, over all " +
                               std::to_string(graph.getReplicationFactor()) + " replicas (group size 0); asked for " +
                               data.elementType().toString() + ", group size " +
                               std::to_string(group.replicaGroupSize()));
  auto n = std::make_shared<poplar::program::Node>();
  n->kind = poplar::program::Node::Kind::all_reduce;
  n->name = name.getPathName();
  n->source = data;
  program.add(poplar::program::Program(n));
}

}  // namespace gcl
