#include "exchange.h"

#include <algorithm>
#include <string>

namespace sparsesnn {

void Exchange::start(int channel, const std::vector<Message>& to, const Content& content) {
  started_[channel] = {to[rank_], content.name, content.sizes};
  start_messages(channel, to, content);
}

std::vector<Message> Exchange::finish(int channel) {
  const Started& started = started_[channel];
  std::vector<Message> from = finish_messages(channel, started.sizes);
  from[rank_] = started.own;
  check_sizes(from, started.sizes, started.name);
  return from;
}

std::vector<Message> Exchange::gather(Message own, const Content& content) {
  std::vector<Message> from = gather_messages(own, content);
  from[rank_] = own;
  check_sizes(from, content.sizes, content.name);
  return from;
}

void Exchange::check_sizes(const std::vector<Message>& from, const std::vector<std::size_t>& sizes,
                           const char* name) const {
  for (std::size_t r = 0; r < sizes.size(); ++r)
    if (from[r].size != sizes[r])
      throw InputError("ShapeError", "rank " + std::to_string(r) + " of " + std::to_string(size_) + " sent " +
                                         std::to_string(from[r].size) + " bytes of " + name + "; " +
                                         std::to_string(sizes[r]) +
                                         " are expected: give all ranks the same network and batch");
}

LayerRanks::LayerRanks(std::shared_ptr<Exchange> among, std::vector<std::uint32_t> first_neurons)
    : exchange(std::move(among)), first(std::move(first_neurons)) {
  if (first.size() != static_cast<std::size_t>(size()) + 1 || !std::is_sorted(first.begin(), first.end()))
    throw InputError("ShapeError", "LayerRanks: first has " + std::to_string(first.size()) + " numbers; give " +
                                       std::to_string(size() + 1) + " that ascend");
}

}  // namespace sparsesnn
