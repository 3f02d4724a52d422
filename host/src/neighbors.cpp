#include "neighbors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "memory.h"
#include "thread_pool.h"

namespace sparsesnn {

struct Neighbors::Box {
  static constexpr std::size_t n_most = 256;  // numbers; more are told one part after the other
  std::atomic<std::uint64_t> n_told;
  alignas(64) std::int64_t numbers[2][n_most];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share it");

std::size_t Neighbors::box_bytes() { return sizeof(Box); }

Neighbors::Neighbors(std::vector<Memory> memory, const std::vector<std::size_t>& boxes, std::size_t rank, bool yields)
    : memory_(std::move(memory)), rank_(rank), yields_(yields) {
  if (boxes.size() != memory_.size() || rank_ >= boxes.size())
    throw InputError("ShapeError", "Neighbors: give the memory and the box of every rank, this one among them");
  for (std::size_t r = 0; r < boxes.size(); ++r) {
    if (boxes[r] > memory_[r].size || memory_[r].size - boxes[r] < sizeof(Box) || boxes[r] % alignof(Box))
      throw InputError("ShapeError", "Neighbors: the box of rank " + std::to_string(r) + " lies outside its memory");
    boxes_.push_back(reinterpret_cast<Box*>(memory_[r].data + boxes[r]));
  }
}

std::vector<std::int64_t> Neighbors::tell(const std::vector<std::int64_t>& own) {
  const Stopwatch stopwatch(travelled_.seconds);
  std::vector<std::int64_t> all(size() * own.size());
  std::size_t from = 0;
  do {
    const std::size_t n = std::min(Box::n_most, own.size() - from);
    ++n_told_;
    std::copy_n(own.data() + from, n, boxes_[rank_]->numbers[n_told_ % 2]);
    boxes_[rank_]->n_told.store(n_told_, std::memory_order_release);
    for (std::size_t r = 0; r < size(); ++r) {
      const Box& box = *boxes_[r];
      for (unsigned turn = 0; box.n_told.load(std::memory_order_acquire) < n_told_; ++turn)
        wait_a_little(turn, yields_);
      std::copy_n(box.numbers[n_told_ % 2], n, all.data() + r * own.size() + from);
    }
    from += n;
  } while (from < own.size());
  return all;
}

void Neighbors::offer(Message part, Lent lent) {
  if (place_in_shared(part.data) < 0) return;
  offer_ = part;
  offer_lent_ = std::move(lent);
}

std::vector<Message> Neighbors::swap(const std::vector<Message>& given, Lent lent) {
  const std::size_t n_ranks = size();
  if (given.size() % n_ranks) throw InputError("ShapeError", "Neighbors: give a part to every rank");
  std::vector<Array<unsigned char>> copies;
  const unsigned char* copied = nullptr;  // the part that the last of them is of
  const auto place_of = [&](const Message& part) {
    const std::int64_t place = place_in_shared(part.data);
    if (place >= 0) return place;
    if (copied != part.data) {
      copied = part.data;
      copies.push_back(Array<unsigned char>::shared(part.size));
      std::memcpy(copies.back().data(), part.data, part.size);
    }
    return place_in_shared(copies.back().data());
  };
  std::vector<std::int64_t> places(2 * given.size() + 2);  // [n][R], place and bytes; then of what is offered
  for (std::size_t k = 0; k < given.size(); ++k) {
    const Message& part = given[k];
    if (k % n_ranks == rank_ || !part.size) continue;
    places[2 * k] = place_of(part);
    places[2 * k + 1] = static_cast<std::int64_t>(part.size);
    travelled_.sent += part.size;
    ++travelled_.n_messages;
  }
  if (offer_.size) {
    places[2 * given.size()] = place_in_shared(offer_.data);
    places[2 * given.size() + 1] = static_cast<std::int64_t>(offer_.size);
  }
  const std::vector<std::int64_t> told = tell(places);
  lent_ = std::move(lent);  // all are here: they have read what was lent before
  copies_ = std::move(copies);
  if (offer_.size) offered_lent_ = std::move(offer_lent_);
  offer_ = {};
  // What rank r told of its k-th part.
  const auto part_of = [&](std::size_t r, std::size_t k) -> Message {
    const std::int64_t* const from = told.data() + r * places.size() + 2 * k;
    const std::size_t place = static_cast<std::size_t>(from[0]), n_bytes = static_cast<std::size_t>(from[1]);
    if (n_bytes && (place > memory_[r].size || memory_[r].size - place < n_bytes))
      throw InputError("ShapeError", "Neighbors: rank " + std::to_string(r) + " gave a part outside its memory");
    return {n_bytes ? memory_[r].data + place : nullptr, n_bytes};
  };
  std::vector<Message> got = given;
  for (std::size_t k = 0; k < given.size(); ++k) {
    const std::size_t r = k % n_ranks;
    if (r == rank_) continue;
    got[k] = part_of(r, k - r + rank_);
    travelled_.received += got[k].size;
  }
  offered_.clear();
  for (std::size_t r = 0; r < n_ranks; ++r) offered_.push_back(part_of(r, given.size()));
  return got;
}

std::vector<Message> Neighbors::gather(Message own, Lent lent) {
  return swap(std::vector<Message>(size(), own), std::move(lent));
}

}  // namespace sparsesnn
