// An exchange between ranks that Python carries out.
#pragma once

#include <nanobind/nanobind.h>

#include "host/src/ranks/exchange.h"

namespace sparsesnn {

// `python` is a host/comm/exchange.py. Arrays are views, valid during the call; those of `start` until `finish` of that
// channel.
class PyExchange final : public Exchange {
 public:
  explicit PyExchange(nanobind::object python);
  void scan(const std::int32_t* own, std::size_t n, std::int32_t* total, std::int32_t* before) override;
  void release(int channel) override;

 protected:
  void start_messages(int channel, const std::vector<Message>& to, const Content& content) override;
  std::vector<Message> finish_messages(int channel, const std::vector<std::size_t>& sizes) override;
  std::vector<Message> gather_messages(Message own, const Content& content) override;

 private:
  std::vector<Message> keep(int channel, nanobind::list received);

  nanobind::object python_;
  nanobind::list received_[n_channels];  // keeps the arrays alive
};

}  // namespace sparsesnn
