// Part of the emulated machine: the program steps that the IPU program uses.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "Graph.hpp"

namespace poplar {

enum class SyncType { INTERNAL, EXTERNAL, GLOBAL };

namespace program {

struct Node;

class Program {
 public:
  Program() = default;
  explicit Program(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  const std::shared_ptr<const Node>& node() const { return node_; }

 protected:
  std::shared_ptr<const Node> node_;
};

struct Node {
  enum class Kind { sequence, execute, copy, to_device, to_host, repeat, sync, all_reduce };
  Kind kind;
  std::vector<Program> children;
  unsigned count = 1;
  ComputeSet compute_set;
  Tensor source, sink;
  DataStream stream;
  SyncType sync = SyncType::INTERNAL;
  std::string name;
};

class Sequence : public Program {
 public:
  Sequence() : Program(nullptr), own_(std::make_shared<Node>()) {
    own_->kind = Node::Kind::sequence;
    node_ = own_;
  }
  void add(const Program& program) { own_->children.push_back(program); }

 private:
  std::shared_ptr<Node> own_;
};

class Execute : public Program {
 public:
  explicit Execute(ComputeSet compute_set, const DebugContext& name = {});
};

class Copy : public Program {
 public:
  Copy(Tensor source, Tensor sink, bool dont_outline = false, const DebugContext& name = {});
  Copy(DataStream source, Tensor sink, bool optimize_memory = false, const DebugContext& name = {});
  Copy(Tensor source, DataStream sink, bool optimize_memory = false, const DebugContext& name = {});
};

class Repeat : public Program {
 public:
  Repeat(unsigned count, const Program& body, const DebugContext& name = {});
};

class Sync : public Program {
 public:
  explicit Sync(SyncType type, const DebugContext& name = {});
};

}  // namespace program
}  // namespace poplar
