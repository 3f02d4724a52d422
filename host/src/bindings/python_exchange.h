// An exchange between ranks that Python carries out.
#pragma once

#include <nanobind/nanobind.h>

#include "host/src/ranks/sharded.h"

namespace sparsesnn {

// `python` has rank, size, first, scan(own, total, before), start(slot, parts, n_lists, n_kinds) and finish(slot) →
// list of uint8 arrays; see host/comm/layer_exchange.py. Arrays are views, valid during the call; those of `start`
// until `finish` of that slot.
class PyExchange : public Exchange {
 public:
  explicit PyExchange(nanobind::object python);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<std::uint32_t>& first() const override { return first_; }
  void scan(const std::int32_t* own, std::size_t n, std::int32_t* total, std::int32_t* before) override;
  void start(int slot, const std::vector<Message>& to, std::size_t n_lists, std::size_t n_kinds) override;
  std::vector<Message> finish(int slot) override;

 private:
  nanobind::object python_;
  nanobind::list received_[2];  // what `finish` returned, kept alive
  int rank_, size_;
  std::vector<std::uint32_t> first_;
};

}  // namespace sparsesnn
