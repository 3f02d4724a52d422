// Spikes of the input that some ranks sort for all: what the others read is what they would have sorted themselves, in
// whatever parts it comes, and what cannot be right is not read.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "host/src/cpu/chunks.h"
#include "host/src/ranks/input_events.h"
#include "host/src/ranks/neighbors.h"
#include "lists.h"

using namespace sparsesnn;

namespace {

constexpr int n_pre = 37, n_steps = 21, n_samples = 19;

Message message_of(const Array<std::int32_t>& part) {
  return {reinterpret_cast<const unsigned char*>(part.data()), part.size() * sizeof(std::int32_t)};
}

// Parts of the chunks of a batch, sorted by so many ranks.
struct Sorted {
  check::OwnedLists lists;
  SenderInput input;
  std::vector<Chunk> chunks;
  std::vector<Array<std::int32_t>> arrays;
  std::vector<Message> parts;

  Sorted(int n_parts, int delay) {
    std::mt19937 random(7);
    lists = check::random_lists(random, n_steps * n_samples, n_pre, 0.2, true);
    input = {lists.view(), n_pre, delay, false};
    chunks = make_chunks(ChunkPlan{40, 1}, n_steps, n_samples, make_leaves(n_samples, 0, 0));
    for (int k = 0; k < n_parts; ++k) arrays.push_back(sort_input(input, chunks, n_samples, {k, n_parts}));
    for (const Array<std::int32_t>& array : arrays) parts.push_back(message_of(array));
  }
};

void check_events(int n_parts, int delay) {
  const Sorted sorted(n_parts, delay);
  const std::vector<SenderChunk> found = sorted_input(sorted.parts, sorted.chunks, n_pre);
  CHECK_EQUAL(found.size(), sorted.chunks.size());
  for (std::size_t c = 0; c < found.size(); ++c) {
    const Events own = sort_by_sender(sorted.input, sorted.chunks[c], n_samples);
    CHECK_EQUAL(found[c].n_events, own.n);
    CHECK(std::equal(own.starts.data(), own.starts.data() + own.starts.size(), found[c].starts));
    CHECK(std::equal(own.rows.data(), own.rows.data() + own.rows.size(), found[c].rows));
  }
}

void check_what_is_missing() {
  Sorted sorted(3, 1);
  CHECK(sorted_input({}, sorted.chunks, n_pre).empty());
  CHECK(sorted_input({sorted.parts[0], sorted.parts[2]}, sorted.chunks, n_pre).empty());
  CHECK(sorted_input({sorted.parts[0], sorted.parts[1]}, sorted.chunks, n_pre).empty());
  CHECK(sorted_input(sorted.parts, sorted.chunks, n_pre + 1).empty());
  const auto others = make_chunks(ChunkPlan{80, 1}, n_steps, n_samples, make_leaves(n_samples, 0, 0));
  CHECK(sorted_input(sorted.parts, others, n_pre).empty());
  std::vector<Message> cut = sorted.parts;
  cut.back().size -= sizeof(std::int32_t);
  CHECK(sorted_input(cut, sorted.chunks, n_pre).empty());
}

void check_what_cannot_be() {
  Sorted sorted(1, 0);
  std::int32_t* const starts = sorted.arrays[0].data() + 4;
  std::int32_t* const rows = starts + 2 * n_pre + 1;
  for (std::int32_t* const number : {&starts[0], &starts[9], &rows[0]}) {
    const std::int32_t before = *number;
    *number = 1 << 20;
    CHECK_THROWS(sorted_input(sorted.parts, sorted.chunks, n_pre), "no chunk has");
    *number = before;
  }
  CHECK(!sorted_input(sorted.parts, sorted.chunks, n_pre).empty());
}

// Two threads of one process as ranks.
void check_offers() {
  const SharedMemory memory = shared_memory();
  if (!memory.n_bytes) return;
  const Neighbors::Memory mapped{reinterpret_cast<unsigned char*>(memory.data), memory.n_bytes};
  std::vector<Array<unsigned char>> rooms;
  std::vector<std::size_t> boxes;
  for (int r = 0; r < 2; ++r) {
    rooms.push_back(Array<unsigned char>::shared(Neighbors::box_bytes()));
    std::memset(rooms.back().data(), 0, rooms.back().size());
    boxes.push_back(static_cast<std::size_t>(place_in_shared(rooms.back().data())));
  }
  Neighbors first({mapped, mapped}, boxes, 0, true), second({mapped, mapped}, boxes, 1, true);
  const auto swap = [&] {
    std::thread other([&] { second.swap({}, nullptr); });
    first.swap({}, nullptr);
    other.join();
  };
  const auto offer = [&](std::int32_t number) {
    const auto part = std::make_shared<Array<std::int32_t>>(Array<std::int32_t>::shared(1));
    (*part)[0] = number;
    second.offer(message_of(*part), part);
    return std::weak_ptr<Array<std::int32_t>>(part);
  };
  const auto seven = offer(7);
  swap();
  CHECK_EQUAL(first.offered()[0].size, 0u);
  for (const Neighbors* of : {&first, &second})
    CHECK_EQUAL(*reinterpret_cast<const std::int32_t*>(of->offered()[1].data), 7);
  swap();
  CHECK_EQUAL(first.offered()[1].size, 0u);  // it is told once, but may be read
  const auto eight = offer(8);
  CHECK(!seven.expired());
  swap();
  CHECK(seven.expired() && !eight.expired());
  const auto private_part = std::make_shared<std::int32_t>(9);
  second.offer({reinterpret_cast<const unsigned char*>(private_part.get()), sizeof(std::int32_t)}, private_part);
  swap();
  CHECK_EQUAL(first.offered()[1].size, 0u);
  CHECK(!eight.expired());
}

}  // namespace

int main() {
  for (const int n_parts : {1, 2, 5, 40})
    for (const int delay : {0, 1, 3}) check_events(n_parts, delay);
  check_what_is_missing();
  check_what_cannot_be();
  check_offers();
  return check::report("input_events");
}
