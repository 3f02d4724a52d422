// Exchanges between ranks: the guarantees of the interface over any transport, and the messages of dry runs.
#include <deque>
#include <map>
#include <vector>

#include "check.h"
#include "host/src/ranks/exchange.h"
#include "host/src/ranks/made_up.h"
#include "host/src/ranks/shard_lists.h"

using namespace sparsesnn;

namespace {

using Bytes = std::vector<unsigned char>;

Message as_message(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }
Bytes bytes(const Message& from) { return Bytes(from.data, from.data + from.size); }

// One rank of two; the other one's messages are `theirs`, in order.
class OneOfTwo final : public Exchange {
 public:
  explicit OneOfTwo(int rank) : Exchange(rank, 2) {}
  void scan(const std::int32_t*, std::size_t, std::int32_t*, std::int32_t*) override {}
  void release(int) override {}

  std::map<int, std::deque<Bytes>> sent, theirs;  // by channel

 protected:
  void start_messages(int channel, const std::vector<Message>& to, const Content&) override {
    sent[channel].push_back(bytes(to[1 - rank()]));
  }
  std::vector<Message> finish_messages(int channel, const std::vector<std::size_t>&) override {
    held_ = theirs[channel].front();
    theirs[channel].pop_front();
    std::vector<Message> from(2);
    from[1 - rank()] = as_message(held_);
    return from;
  }
  std::vector<Message> gather_messages(Message own, const Content& content) override {
    start_messages(layers, {own, own}, content);
    return finish_messages(layers, content.sizes);
  }

 private:
  Bytes held_;
};

void own_messages_are_among_those_received() {
  OneOfTwo exchange(1);
  exchange.theirs[Exchange::first_half] = {{7, 8}};
  exchange.theirs[Exchange::layers] = {{}};
  const Bytes to_other{1}, own{2, 3};
  exchange.start(Exchange::first_half, {as_message(to_other), as_message(own)}, {"numbers"});
  const std::vector<Message> gathered = exchange.gather(as_message(own), {"numbers", {0, 2}});
  CHECK_EQUAL(gathered.size(), std::size_t{2});
  CHECK(bytes(gathered[1]) == own && bytes(gathered[0]).empty());
  const std::vector<Message> from = exchange.finish(Exchange::first_half);
  CHECK(bytes(from[1]) == own && (bytes(from[0]) == Bytes{7, 8}));
  CHECK(exchange.sent[Exchange::first_half].front() == to_other);
}

void messages_of_another_size_name_their_rank() {
  OneOfTwo exchange(0);
  exchange.theirs[Exchange::layers] = {{1, 2, 3}, {1, 2, 3}};
  const Bytes own{5, 6, 7, 8};
  CHECK_THROWS(exchange.gather(as_message(own), {"potentials", {4, 4}}),
               "rank 1 of 2 sent 3 bytes of potentials; 4 are");
  exchange.start(Exchange::layers, {as_message(own), as_message(own)}, {"list gradients", {4, 4}});
  CHECK_THROWS(exchange.finish(Exchange::layers), "rank 1 of 2 sent 3 bytes of list gradients; 4 are");
}

void first_neurons_must_ascend() {
  const auto exchange = std::make_shared<OneOfTwo>(0);
  CHECK_EQUAL(LayerRanks(exchange, {0, 16, 40}).n_neurons(1), 24u);
  CHECK_THROWS(LayerRanks(exchange, {0, 16}), "first has 2 numbers; give 3 that ascend");
  CHECK_THROWS(LayerRanks(exchange, {0, 16, 8}), "give 3 that ascend");
}

// Lists of 3 steps of one sample, of 3 neurons: as those of another rank with 5, two lists later.
void made_up_lists_are_as_active() {
  const std::vector<std::int64_t> offsets{0, 2, 2, 5};
  const std::vector<std::uint16_t> ids{0, 2, 0, 1, 2};
  const std::vector<std::int32_t> n_spikes{1, 0, 3};
  const Lists own{offsets.data(), ids.data(), n_spikes.data(), false};
  const std::vector<std::uint32_t> first{0, 3, 8, 8};
  CHECK_EQUAL(made_up_lists(own, 3, 1, first, 0, 2, false, {}).size(), std::size_t{0});
  const Array<unsigned char> message = made_up_lists(own, 3, 1, first, 0, 1, false, {});
  const MergedLists found = merge_messages({{}, Message::of(message), {}}, 3, false, {0, 0, 5, 5});
  // Run 2k is the spikes of list k, run 2k + 1 its near-spikes; runs move on by two, and ids 3 and 4 double 0 and 1.
  CHECK((std::vector<std::int64_t>(found.offsets.data(), found.offsets.data() + 4) ==
         std::vector<std::int64_t>{0, 0, 5, 8}));
  CHECK((std::vector<std::int32_t>(found.n_spikes.data(), found.n_spikes.data() + 3) ==
         std::vector<std::int32_t>{0, 5, 2}));
  const auto* const theirs = reinterpret_cast<const std::uint16_t*>(found.ids.data());
  CHECK((std::vector<std::uint16_t>(theirs, theirs + 8) == std::vector<std::uint16_t>{0, 1, 2, 3, 4, 0, 3, 2}));
  const Array<unsigned char> drawn = made_up_lists({}, 40, 25, {0, 0, 100}, 0, 1, false, {});
  const MergedLists of_drawn = merge_messages({{}, Message::of(drawn)}, 1000, false, {0, 0, 100});
  CHECK(of_drawn.offsets[1000] > 1500 && of_drawn.offsets[1000] < 2500);  // 2 % of 100,000
}

void made_up_spikes_move_with_their_counts() {
  const auto exchange = std::make_shared<OneOfTwo>(0);
  const LayerRanks ranks(exchange, {0, 4, 6});
  // Two lists, each with counts of spikes and near-spikes, as bytes after the ids.
  Bytes own{0, 0, 3, 0, 2, 0, /*counts*/ 2, 1, 1, 3};
  const Array<unsigned char> found = made_up_spikes(as_message(own), 2, 2, false, ranks, 1);
  // By one list: that of neuron 2, which the other rank lacks, then 0 and 3, of which it lacks the latter.
  CHECK(bytes(Message::of(found)) == (Bytes{4, 0, 0, 2, 1, 1}));
}

}  // namespace

int main() {
  own_messages_are_among_those_received();
  messages_of_another_size_name_their_rank();
  first_neurons_must_ascend();
  made_up_lists_are_as_active();
  made_up_spikes_move_with_their_counts();
  return check::report("test_exchange");
}
