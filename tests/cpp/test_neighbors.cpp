// Messages that ranks of one host post: here the ranks are threads.
#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "host/src/machine/memory.h"
#include "host/src/ranks/neighbors.h"

using sparsesnn::Array;
using sparsesnn::Message;
using sparsesnn::Neighbors;

namespace {

using Boxes = std::vector<Array<unsigned char>>;

Boxes boxes_of(int n_ranks) {
  Boxes boxes;
  for (int r = 0; r < n_ranks; ++r) {
    boxes.push_back(Array<unsigned char>::shared(Neighbors::box_bytes()));
    std::fill_n(boxes[r].data(), Neighbors::box_bytes(), 0);
  }
  return boxes;
}

std::unique_ptr<Neighbors> neighbors_in(const Boxes& boxes, int rank) {
  const sparsesnn::SharedMemory shared = sparsesnn::shared_memory();
  const Neighbors::Memory memory{reinterpret_cast<unsigned char*>(shared.data), shared.n_bytes};
  std::vector<std::size_t> places;
  for (const auto& box : boxes) places.push_back(static_cast<std::size_t>(sparsesnn::place_in_shared(box.data())));
  return std::make_unique<Neighbors>(std::vector<Neighbors::Memory>(boxes.size(), memory), places, rank, true);
}

// The `round`th message in a slot; none to some, and parcels that grow.
std::vector<unsigned char> message(int round, int slot, int from, int to) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>((round * 37 + 11 * from + 5 * to) % 60) * (1 + round / 20));
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(round + 7 * slot + 31 * from + 101 * to));
  return bytes;
}

bool equal(const Message& got, const std::vector<unsigned char>& wanted) {
  return got.size == wanted.size() && std::equal(wanted.begin(), wanted.end(), got.data);
}

void on_ranks(int n_ranks, const std::function<void(Neighbors&, int)>& run) {
  const Boxes boxes = boxes_of(n_ranks);
  std::vector<std::unique_ptr<Neighbors>> neighbors;  // until all have ended: others read what one posted last
  for (int r = 0; r < n_ranks; ++r) neighbors.push_back(neighbors_in(boxes, r));
  std::vector<std::thread> threads;
  for (int r = 0; r < n_ranks; ++r) threads.emplace_back([&, r] { run(*neighbors[r], r); });
  for (std::thread& thread : threads) thread.join();
}

// Both slots by turns, one message of each under way, as halves of a batch are; between them ranks swap.
void every_message_arrives() {
  for (const int n_ranks : {1, 2, 5}) {
    on_ranks(n_ranks, [n_ranks](Neighbors& neighbors, int rank) {
      constexpr int n_rounds = 100;
      for (int round = 0; round <= n_rounds; ++round) {
        for (int slot = 0; slot < 2; ++slot) {
          if (round) {
            const std::vector<Message> got = neighbors.take(slot);
            for (int from = 0; from < n_ranks; ++from) {
              if (from == rank)
                CHECK(!got[from].data && !got[from].size);
              else
                CHECK(equal(got[from], message(round - 1, slot, from, rank)));
            }
          }
          if (round == n_rounds) continue;
          std::vector<std::vector<unsigned char>> own;
          std::vector<Message> to;
          for (int r = 0; r < n_ranks; ++r) own.push_back(message(round, slot, rank, r));
          for (const auto& one : own) to.push_back({one.data(), one.size()});
          neighbors.post(slot, to);
          for (auto& one : own) std::fill(one.begin(), one.end(), 0);  // copied
        }
        if (round % 10 == 0) neighbors.swap({}, nullptr);
      }
    });
  }
}

void the_same_for_all_is_copied_once() {
  const unsigned char* seen[3][3] = {};  // [rank][from]; of one process, so copies of one message lie in one place
  on_ranks(3, [&seen](Neighbors& neighbors, int rank) {
    const std::vector<unsigned char> own = message(59, 0, rank, 0);
    neighbors.post(0, std::vector<Message>(3, {own.data(), own.size()}));
    const std::vector<Message> got = neighbors.take(0);
    for (int from = 0; from < 3; ++from) {
      if (from != rank) CHECK(equal(got[from], message(59, 0, from, 0)));
      seen[rank][from] = got[from].data;
    }
  });
  for (int from = 0; from < 3; ++from) CHECK(seen[(from + 1) % 3][from] == seen[(from + 2) % 3][from]);
}

void what_cannot_be_is_refused() {
  const Boxes boxes = boxes_of(2);
  const auto neighbors = neighbors_in(boxes, 0);
  neighbors->post(1, std::vector<Message>(2));
  for (std::size_t k = 0; k < Neighbors::box_bytes(); k += 8) boxes[1].data()[k + 6] = 1;  // numbers of 1 << 48
  CHECK_THROWS(neighbors->take(1), "rank 1 gave a part outside its memory");
  for (std::size_t k = 0; k < Neighbors::box_bytes(); ++k) boxes[1].data()[k] = k % 8 == 0;  // parcels of 1 byte
  CHECK_THROWS(neighbors->take(1), "rank 1 gave a part outside its parcel");
}

}  // namespace

int main() {
  if (sparsesnn::shared_memory().n_bytes) {
    every_message_arrives();
    the_same_for_all_is_copied_once();
    what_cannot_be_is_refused();
  }
  return check::report("neighbors");
}
