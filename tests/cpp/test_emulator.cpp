// Planted faults: each rule of the emulated machine is broken once, and the message must name tile, vertex and field.
#include <cmath>
#include <cstring>
#include <gcl/Collectives.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/Program.hpp>

#include "check.h"
#include "codelets/ipu/vertex.h"
#include "host/src/emulator/machine.h"

namespace sparsesnn::ipu {

// out[i] = in[i] + 1
class AddOne : public poplar::MultiVertex {
 public:
  poplar::Input<poplar::Vector<float, one_pointer, 8>> in;
  poplar::Output<poplar::Vector<float, one_pointer, 8>> out;
  unsigned n;

  bool compute(unsigned worker) {
    for (unsigned k = worker; k < n; k += workers) out[k] = in[k] + 1.0f;
    SPARSESNN_WORK(deliver_id, (n + workers - 1) / workers);
    return true;
  }
};
SPARSESNN_VERTEX(AddOne, in, out, n)

// Each worker writes single 16-bit numbers: neighbors share a word.
class SubWord : public poplar::MultiVertex {
 public:
  poplar::Output<poplar::Vector<unsigned short>> out;

  bool compute(unsigned worker) {
    for (unsigned k = worker; k < out.size(); k += workers) out[k] = static_cast<unsigned short>(k + 7);
    return true;
  }
};
SPARSESNN_VERTEX(SubWord, out)

// The last worker wins: a result that depends on the order.
class LastWins : public poplar::MultiVertex {
 public:
  poplar::InOut<poplar::Vector<unsigned>> x;

  bool compute(unsigned worker) {
    x[0] = worker + 1;
    return true;
  }
};
SPARSESNN_VERTEX(LastWins, x)

class Beyond : public poplar::Vertex {
 public:
  poplar::Output<poplar::Vector<float>> out;

  bool compute() {
    for (unsigned k = 0; k <= out.size(); ++k) out[k] = 1.0f;
    return true;
  }
};
SPARSESNN_VERTEX(Beyond, out)

// Where fields and vertex state begin, from a multiple of 64, at the vertex's first run: when it is checked.
unsigned begins_seen[7] = {};

class Addresses : public poplar::Vertex {
 public:
  poplar::Input<poplar::Vector<float, one_pointer, 4>> four;
  poplar::Input<poplar::Vector<float, one_pointer, 8>> eight;
  poplar::Input<poplar::Vector<float, one_pointer, 16>> sixteen;
  poplar::Input<poplar::Vector<unsigned short>> two;
  ListOf<poplar::InOut<poplar::Vector<unsigned short, one_pointer, 4>>> shorts;
  Numbers state;

  bool compute() {
    if (begins_seen[0]) return true;
    const void* begins[] = {&four[0], &eight[0], &sixteen[0], &two[0], &shorts[0][0], &shorts[1][0], &state[0]};
    for (unsigned k = 0; k < 7; ++k)
      begins_seen[k] = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(begins[k]) % 64);
    return true;
  }
};
SPARSESNN_VERTEX(Addresses, four, eight, sixteen, two, shorts, state)

// Each worker writes a pair of 16-bit numbers: whole words only if the field begins at one.
template <unsigned align>
class PairsOfShorts : public poplar::MultiVertex {
 public:
  poplar::Output<poplar::Vector<unsigned short, one_pointer, align>> out;
  unsigned n;

  bool compute(unsigned worker) {
    for (unsigned k = 2 * worker; k < n; k += 2 * workers) out[k] = out[k + 1] = 7;
    return true;
  }
};
using PairsAtWords = PairsOfShorts<4>;
using PairsAnywhere = PairsOfShorts<2>;
SPARSESNN_VERTEX(PairsAtWords, out, n)
SPARSESNN_VERTEX(PairsAnywhere, out, n)

class SumRegions : public poplar::Vertex {
 public:
  poplar::Vector<poplar::Input<poplar::Vector<float>>> in;
  poplar::Output<float> out;

  bool compute() {
    float sum = 0.0f;
    for (unsigned r = 0; r < in.size(); ++r)
      for (float x : in[r]) sum += x;
    *out = sum;
    return true;
  }
};
SPARSESNN_VERTEX(SumRegions, in, out)

}  // namespace sparsesnn::ipu

namespace {

using namespace poplar;
using namespace poplar::program;
namespace emulator = sparsesnn::emulator;

struct Bench {
  Graph graph;
  Sequence program;

  explicit Bench(unsigned n_ipus = 1) : graph(device(n_ipus).getTarget()) {}

  static Device device(unsigned n_ipus) {
    IPUModel model("ipu2");
    model.numIPUs = n_ipus;
    model.tilesPerIPU = 4;
    return model.createDevice();
  }

  Tensor floats(std::size_t n, unsigned tile, const char* name) {
    const Tensor t = graph.addVariable(FLOAT, {n}, name);
    graph.setTileMapping(t, tile);
    return t;
  }

  Tensor ones(std::size_t n, unsigned tile) {
    const float one = 1.0f;
    const Tensor t = graph.addConstant<float>(FLOAT, {n}, ArrayRef<float>(&one, 1), "ones");
    graph.setTileMapping(t, tile);
    return t;
  }

  VertexRef add_one(ComputeSet cs, const Tensor& in, const Tensor& out, unsigned tile) {
    const VertexRef v = graph.addVertex(cs, "sparsesnn::ipu::AddOne");
    graph.setTileMapping(v, tile);
    graph.connect(v["in"], in);
    graph.connect(v["out"], out);
    graph.setInitialValue(v["n"], static_cast<unsigned>(out.numElements()));
    return v;
  }

  ComputeSet set(const char* name = "cs") {
    const ComputeSet cs = graph.addComputeSet(name);
    program.add(Execute(cs));
    return cs;
  }

  Engine engine(emulator::Options options = {}) {
    options.checks = emulator::Checks::always;
    emulator::options_of_next_engine() = options;
    return Engine(graph, {program});
  }

  void run() { engine().run(0); }
};

void it_computes() {
  Bench b(2);
  const Tensor in = b.ones(10, 0), middle = b.floats(10, 1, "middle"), out = b.floats(10, 5, "out");
  b.add_one(b.set("first"), in, middle, 1);
  b.add_one(b.set("second"), middle, out, 5);
  const ComputeSet sum = b.set("sum");
  const VertexRef v = b.graph.addVertex(sum, "sparsesnn::ipu::SumRegions");
  b.graph.setTileMapping(v, 2);
  const Tensor total = b.floats(1, 2, "total");
  b.graph.connect(v["in"], ArrayRef<Tensor>({in, out.slice(2, 5), concat({middle, out})}));
  b.graph.connect(v["out"], total);
  const DataStream stream = b.graph.addDeviceToHostFIFO("total", FLOAT, 1);
  b.program.add(Copy(total, stream));
  Engine engine = b.engine();
  float result = 0;
  engine.connectStream("total", &result, &result + 1);
  engine.run(0);
  CHECK_EQUAL(result, 10.0f + 9.0f + 50.0f);
  CHECK_EQUAL(b.graph.getTarget().getNumWorkerContexts(), poplar::MultiVertex::numWorkers());
  const auto vertices = engine.machine().vertices();
  CHECK_EQUAL(vertices.size(), 3u);
  CHECK_EQUAL(vertices[1].compute_set == "second" && vertices[1].type == "sparsesnn::ipu::AddOne", true);
  CHECK_EQUAL(vertices[1].tile, 5u);

  const emulator::Report report = engine.machine().report();
  const auto& first = report.steps[0];
  const auto& second = report.steps[1];
  CHECK_EQUAL(first.exchange_bytes, 40u);  // 10 floats from tile 0 to tile 1
  CHECK_EQUAL(first.exchange_cycles, 10.0);
  CHECK_EQUAL(first.link_bytes, 0u);
  CHECK_EQUAL(second.link_bytes, 40u);  // tile 5 is on the second IPU
  CHECK_EQUAL(second.sync_cycles, emulator::Parameters().external_sync_cycles);
  // supervisor, and six times the longest worker: two ids
  const emulator::Parameters p;
  CHECK_EQUAL(first.compute_cycles, p.supervisor_cycles + 6 * (p.worker_bundles + 2 * emulator::work().deliver_id));
  // twice the middle tensor is received once
  CHECK_EQUAL(report.steps[2].exchange_bytes, 40u + 40u + 12u + 40u);
}

void loops_repeat_their_body() {
  Bench b;
  const Tensor x = b.floats(8, 0, "x"), y = b.floats(8, 0, "y");
  Sequence body;
  const ComputeSet forth = b.graph.addComputeSet("forth");
  b.add_one(forth, x, y, 0);
  body.add(Execute(forth));
  body.add(Copy(y, x));
  b.program.add(Copy(b.ones(8, 0), x));
  b.program.add(Repeat(5, body));
  const DataStream stream = b.graph.addDeviceToHostFIFO("x", FLOAT, 8);
  b.program.add(Copy(x, stream));
  Engine engine = b.engine();
  std::vector<float> result(8);
  engine.connectStream("x", result.data(), result.data() + 8);
  engine.run(0);
  CHECK_EQUAL(result[7], 6.0f);
  CHECK_EQUAL(engine.machine().report().steps[0].executions, 5u);
}

void mappings() {
  Bench unmapped;
  unmapped.graph.addVariable(FLOAT, {4}, "lost");
  CHECK_THROWS(unmapped.run(), "variable 'lost': elements from 0 of 4 are mapped to no tile");

  Bench half;
  half.graph.setTileMapping(half.graph.addVariable(FLOAT, {4}, "half").slice(0, 3), 1);
  CHECK_THROWS(half.run(), "variable 'half': elements from 3 of 4 are mapped to no tile");

  Bench twice;
  const Tensor t = twice.floats(4, 0, "twice");
  twice.graph.setTileMapping(t.slice(2, 4), 1);
  CHECK_THROWS(twice.run(), "variable 'twice': element 2 is mapped twice");

  Bench constant;
  const float one = 1.0f;
  constant.graph.addConstant<float>(FLOAT, {4}, ArrayRef<float>(&one, 1), "ones");
  CHECK_THROWS(constant.run(), "constant 'ones': elements from 0 of 4 are mapped to no tile");

  Bench vertex;
  const VertexRef v = vertex.graph.addVertex(vertex.set(), "sparsesnn::ipu::AddOne");
  vertex.graph.connect(v["in"], vertex.ones(4, 0));
  CHECK_THROWS(vertex.run(), "vertex 0 (sparsesnn::ipu::AddOne, compute set 'cs', no tile): is mapped to no tile");

  Bench outside;
  CHECK_THROWS(outside.floats(4, 4, "outside"), "variable 'outside' is mapped to tile 4; there are 4");
}

void fields() {
  Bench b;
  const ComputeSet cs = b.set();
  const VertexRef v = b.graph.addVertex(cs, "sparsesnn::ipu::AddOne");
  b.graph.setTileMapping(v, 3);
  CHECK_THROWS(b.graph.addVertex(cs, "sparsesnn::ipu::AddTwo"), "there is no vertex 'sparsesnn::ipu::AddTwo'");
  CHECK_THROWS(b.graph.connect(v["input"], b.ones(4, 0)), "tile 3): no field 'input'; there are: in, out, n");
  CHECK_THROWS(b.graph.connect(v["in"], b.graph.addVariable(UNSIGNED_INT, {4}, "x")),
               "tile 3), field 'in': holds float; the tensor holds unsigned int");
  CHECK_THROWS(b.graph.connect(v["out"], b.ones(4, 0).reshape({2, 2})),
               "field 'out': takes one dimension; the tensor is [2, 2]");
  const VertexRef w = b.graph.addVertex(cs, "sparsesnn::ipu::SumRegions");
  CHECK_THROWS(b.graph.connect(w["out"], b.ones(4, 0)), "field 'out': takes one element; the tensor is [4]");
  CHECK_THROWS(b.graph.connect(w["in"], b.ones(4, 0)), "field 'in': is a list of regions");
  const VertexRef x = b.graph.addVertex(cs, "sparsesnn::ipu::AddOne");
  CHECK_THROWS(b.graph.setInitialValue(x["n"], 1.0f), "field 'n': holds unsigned int; given: float");
  const VertexRef z = b.graph.addVertex(cs, "sparsesnn::ipu::AddOne");
  CHECK_THROWS(b.graph.connect(z["n"], b.ones(1, 0)), "field 'n': is vertex state");

  Bench open;
  const VertexRef y = open.graph.addVertex(open.set(), "sparsesnn::ipu::AddOne");
  open.graph.setTileMapping(y, 0);
  open.graph.connect(y["in"], open.ones(4, 0));
  CHECK_THROWS(open.run(), "tile 0), field 'out': is not connected");
}

void one_writer() {
  Bench b;
  const Tensor out = b.floats(8, 1, "shared");
  const ComputeSet cs = b.set();
  b.add_one(cs, b.ones(6, 0), out.slice(0, 6), 1);
  b.add_one(cs, b.ones(4, 0), out.slice(4, 8), 1);
  CHECK_THROWS(b.run(),
               "vertex 1 (sparsesnn::ipu::AddOne, compute set 'cs', tile 1), field 'out' (variable 'shared'): "
               "writes element 4, as does vertex 0");

  Bench reads;
  const Tensor x = reads.floats(8, 1, "x"), y = reads.floats(8, 2, "y");
  const ComputeSet both = reads.set();
  reads.add_one(both, reads.ones(8, 0), x, 1);
  reads.add_one(both, x, y, 2);
  CHECK_THROWS(reads.run(), "tile 2), field 'in' (variable 'x'): reads element 0, which vertex 0");

  Bench remote;
  const Tensor far = remote.floats(8, 1, "far");
  remote.add_one(remote.set(), remote.ones(8, 0), far, 0);
  CHECK_THROWS(remote.run(), "tile 0), field 'out' (variable 'far'): writes elements 0 to 8, which are on tile 1");

  Bench constant;
  const Tensor ones = constant.ones(8, 0);
  constant.add_one(constant.set(), constant.ones(8, 0), ones, 0);
  CHECK_THROWS(constant.run(), "field 'out' (variable 'ones'): writes a constant");
}

void alignment_and_memory() {
  Bench b;
  const Tensor out = b.floats(8, 1, "odd");
  b.add_one(b.set(), b.ones(4, 0), out.slice(1, 5), 1);
  CHECK_THROWS(b.run(),
               "field 'out' (variable 'odd'): begins 4 bytes into its tile's part; the field needs multiples of 8");

  // A vertex is checked on copies with the alignment that its fields promise, and no more.
  Bench exact;
  const VertexRef v = exact.graph.addVertex(exact.set(), "sparsesnn::ipu::Addresses");
  exact.graph.setTileMapping(v, 0);
  for (const char* field : {"four", "eight", "sixteen"}) exact.graph.connect(v[field], exact.ones(4, 0));
  const auto shorts = [&] {
    const Tensor t = exact.graph.addVariable(UNSIGNED_SHORT, {4}, "shorts");
    exact.graph.setTileMapping(t, 0);
    return t;
  };
  exact.graph.connect(v["two"], shorts());
  exact.graph.connect(v["shorts"], ArrayRef<Tensor>({shorts(), shorts()}));
  const unsigned numbers[] = {1, 2, 3};
  exact.graph.setInitialValue(v["state"], ArrayRef<unsigned>(numbers, 3));
  exact.run();
  const unsigned wanted[] = {4, 8, 16, 2, 4, 4, 4};
  for (unsigned k = 0; k < 7; ++k) CHECK_EQUAL(sparsesnn::ipu::begins_seen[k], wanted[k]);

  for (const bool words : {true, false}) {
    Bench pairs;
    const VertexRef w =
        pairs.graph.addVertex(pairs.set(), words ? "sparsesnn::ipu::PairsAtWords" : "sparsesnn::ipu::PairsAnywhere");
    pairs.graph.setTileMapping(w, 0);
    const Tensor out16 = pairs.graph.addVariable(UNSIGNED_SHORT, {24}, "pairs");
    pairs.graph.setTileMapping(out16, 0);
    pairs.graph.connect(w["out"], out16);
    pairs.graph.setInitialValue(w["n"], 24u);
    if (words)
      pairs.run();
    else
      CHECK_THROWS(pairs.run(),
                   "field 'out' (variable 'pairs'): workers 0 and 1 both write the 4-byte word of element");
  }

  Bench big;
  big.floats(200000, 2, "huge");
  CHECK_THROWS(big.run(), "of its 638976; the largest variable on it is 'huge' with 800000");
  CHECK_THROWS(big.run(), "tile 2 needs ");
}

void data_that_nobody_wrote() {
  Bench b;
  const Tensor in = b.floats(4, 0, "never"), out = b.floats(4, 1, "out");
  b.add_one(b.set(), in, out, 1);
  CHECK_THROWS(b.run(),
               "tile 1), field 'out' (variable 'out'): element 0 depends on data read before it was written: "
               "vertex 0 (sparsesnn::ipu::AddOne, compute set 'cs', tile 1), field 'in' (variable 'never')");

  Bench copy;
  copy.program.add(Copy(copy.floats(4, 0, "never"), copy.floats(4, 1, "to"), false, "early"));
  CHECK_THROWS(copy.run(), "copy 'early': reads element 0 of variable 'never' before it was written");

  Bench later;  // written first: fine
  const Tensor x = later.floats(4, 0, "x"), y = later.floats(4, 1, "y");
  later.program.add(Copy(later.ones(4, 2), x));
  later.add_one(later.set(), x, y, 1);
  later.run();
}

void races_of_workers() {
  Bench b;
  const VertexRef v = b.graph.addVertex(b.set("race"), "sparsesnn::ipu::SubWord");
  const Tensor out = b.graph.addVariable(UNSIGNED_SHORT, {12}, "shorts");
  b.graph.setTileMapping(out, 3);
  b.graph.setTileMapping(v, 3);
  b.graph.connect(v["out"], out);
  CHECK_THROWS(b.run(),
               "(sparsesnn::ipu::SubWord, compute set 'race', tile 3), field 'out' (variable 'shorts'): workers 1 "
               "and 2 both write the 4-byte word of element 2");

  Bench order;
  const VertexRef w = order.graph.addVertex(order.set(), "sparsesnn::ipu::LastWins");
  const Tensor x = order.graph.addVariable(UNSIGNED_INT, {1}, "x");
  order.graph.setTileMapping(x, 0);
  order.graph.setTileMapping(w, 0);
  order.graph.connect(w["x"], x);
  CHECK_THROWS(order.run(), "tile 0), field 'x' (variable 'x'): element 0 depends on the order of the workers");

  Bench beyond;
  const VertexRef z = beyond.graph.addVertex(beyond.set(), "sparsesnn::ipu::Beyond");
  const Tensor y = beyond.floats(3, 1, "y");
  beyond.graph.setTileMapping(z, 1);
  beyond.graph.connect(z["out"], y);
  CHECK_THROWS(beyond.run(), "tile 1), field 'out' (variable 'y'): writes outside its 3 elements");
}

void views_and_streams() {
  Bench b;
  const Tensor t = b.floats(12, 0, "t");
  const Tensor column = t.reshape({3, 4}).slice(1, 3, 1);
  CHECK_EQUAL(column.numElements(), 6u);
  CHECK_EQUAL(column.pieces().size(), 3u);
  CHECK_EQUAL(column.pieces()[1].begin, 5u);
  CHECK_EQUAL(concat({t.slice(0, 2), t.slice(2, 5)}).pieces().size(), 1u);
  // columns joined: rows alternate between the tensors
  const Tensor joined = concat({t.reshape({3, 4}).slice(2, 4, 1), t.reshape({3, 4}).slice(0, 1, 1)}, 1);
  CHECK_EQUAL(joined.dim(1), 3u);
  CHECK_EQUAL(joined.pieces().size(), 6u);
  CHECK_EQUAL(joined.pieces()[2].begin, 6u);
  CHECK_EQUAL(joined.pieces()[3].begin, 4u);
  CHECK_EQUAL(joined.pieces()[5].begin, 8u);
  CHECK_THROWS(concat({column, t.reshape({2, 6})}, 1), "concat: a tensor [2, 6] of float does not fit [3, 2] of float");
  CHECK_THROWS(concat({t, t}, 1), "concat: dimension is 1 of tensors [12]");
  CHECK_THROWS(t.reinterpret(poplar::UNSIGNED_SHORT), "reinterpret: float has another size than unsigned short");
  CHECK_THROWS(Copy(t.reinterpret(poplar::INT), t), "from 12 of int to 12 of float");
  CHECK_THROWS(t.slice(3, 13), "slice: 3 to 13 of dimension 0 of a tensor [12]");
  CHECK_THROWS(t.reshape({5, 2}), "reshape: [12] has another number of elements than [5, 2]");
  CHECK_THROWS(Copy(t, column), "from 12 of float to 6 of float");
  CHECK_THROWS(b.graph.addCodelets("codelets.o"), "addCodelets: 'codelets.o' is neither .gp nor .cpp");

  const DataStream in = b.graph.addHostToDeviceFIFO("in", FLOAT, 12);
  b.program.add(Copy(in, t));
  Engine engine = b.engine();
  CHECK_THROWS(engine.run(0), "stream 'in' is not connected");
  std::vector<float> host(12);
  CHECK_THROWS(engine.connectStream("in", host.data(), host.data() + 11),
               "stream 'in': given 44 bytes; it moves 12 of float");
  CHECK_THROWS(engine.connectStream("other", host.data(), host.data()), "there is no stream 'other'");
  engine.connectStream("in", host.data(), host.data() + 12);
  engine.run(0);
  CHECK_THROWS(engine.run(1), "there is no program 1; there are 1");
}

struct Forgetful : poplar::Vertex {
  poplar::Input<float> a, b;
  bool compute() { return true; }
};

void registration() {
  CHECK_THROWS(emulator::register_vertex<Forgetful>("Forgetful", {emulator::describe("b", &Forgetful::b)}),
               "a field before 'b' is not listed");
  CHECK_THROWS(emulator::register_vertex<Forgetful>("Forgetful", {emulator::describe("a", &Forgetful::a)}),
               "its last fields are not listed");
}

}  // namespace

void replicas_add_up() {
  const Graph refused(Target(4, 2), replication_factor(2));
  CHECK_EQUAL(refused.getTarget().getNumIPUs(), 2u);
  CHECK_THROWS(Graph(Target(3, 2), replication_factor(2)), "2 replicas do not divide 3 IPUs");

  Graph graph(Target(3, 2), replication_factor(3));
  Tensor x = graph.addVariable(FLOAT, {4}, "x");
  graph.setTileMapping(x.slice(0, 3), 0);
  graph.setTileMapping(x.slice(3, 4), 1);
  const DataStream in = graph.addHostToDeviceFIFO("in", FLOAT, 4), out = graph.addDeviceToHostFIFO("out", FLOAT, 4);
  Sequence program, unwritten;
  program.add(Copy(in, x));
  gcl::allReduceInPlaceCrossReplica(graph, x, gcl::CollectiveOperator::ADD, program,
                                    gcl::CommGroup(gcl::CommGroupType::ALL, 0), "total");
  program.add(Copy(x, out));
  CHECK_THROWS(
      gcl::allReduceInPlaceCrossReplica(graph, x, gcl::CollectiveOperator::ADD, program,
                                        gcl::CommGroup(gcl::CommGroupType::ALL, 2), "part"),
      "all-reduce 'part': emulated: floats, over all 3 replicas (group size 0); asked for float, group size 2");
  Engine engine(graph, {program});
  // in the order of the replicas: (1e8 + -1e8) + 1 is 1, and 1e8 + (-1e8 + 1) would be 0
  const float given[3][4] = {{1e8f, 1, 2, 3}, {-1e8f, 10, 20, 30}, {1, 100, 200, 300}};
  float found[3][4] = {};
  for (unsigned r = 0; r < 3; ++r) {
    engine.connectStreamToCallback("in", r, [&, r](void* to) { std::memcpy(to, given[r], sizeof(given[r])); });
    engine.connectStreamToCallback("out", r, [&, r](void* from) { std::memcpy(found[r], from, sizeof(found[r])); });
  }
  CHECK_THROWS(engine.connectStream("in", found[0], found[1]),
               "one memory for 3 replicas; connect a callback for each");
  CHECK_THROWS(engine.connectStreamToCallback("in", 3, [](void*) {}), "there is no replica 3");
  engine.run(0);
  for (const auto& row : found) {
    CHECK_EQUAL(row[0], 1.0f);
    CHECK_EQUAL(row[3], 333.0f);
  }
  const emulator::StepCount total = engine.machine().report().steps[1];
  CHECK_EQUAL(total.name == "total", true);
  CHECK_EQUAL(total.link_bytes, 64u);  // a ring: 2 · 2 / 3 of 16 bytes from each of three
}

void halves_round_to_the_nearest() {
  const std::pair<float, float> cases[] = {{1.0f, 1.0f},
                                           {1.00048828125f, 1.0f},
                                           {1.00146484375f, 1.001953125f},
                                           {65519.0f, 65504.0f},
                                           {65520.0f, INFINITY},
                                           {-0.0f, -0.0f},
                                           {5.9604645e-8f, 0x1p-24f},
                                           {2.9e-8f, 0.0f},
                                           {6.1e-5f, 1023 * 0x1p-24f},
                                           {-3.14159f, -3.140625f},
                                           {0x1p-14f, 0x1p-14f},
                                           {0.1f, 0.0999755859375f}};
  for (const auto& [x, rounded] : cases) CHECK_EQUAL(static_cast<float>(half(x)), rounded);
  const float nan = half(NAN);
  CHECK_EQUAL(nan != nan, true);
}

int main() {
  it_computes();
  replicas_add_up();
  halves_round_to_the_nearest();
  loops_repeat_their_body();
  mappings();
  fields();
  one_writer();
  alignment_and_memory();
  data_that_nobody_wrote();
  races_of_workers();
  views_and_streams();
  registration();
  return check::report("emulator");
}
