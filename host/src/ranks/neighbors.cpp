#include "neighbors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "host/src/machine/memory.h"
#include "host/src/machine/thread_pool.h"

namespace sparsesnn {
namespace {

// Of a part in a parcel.
struct Span {
  std::uint64_t begin, size;
};

}  // namespace

struct Neighbors::Box {
  static constexpr std::size_t n_most = 256;  // numbers; more are told one part after the other
  std::atomic<std::uint64_t> n_told;
  alignas(64) std::int64_t numbers[2][n_most];
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> n_posted;
    std::int64_t place[2], size[2];  // of the last two parcels
  } slots[2];
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
      await(box.n_told, n_told_);
      std::copy_n(box.numbers[n_told_ % 2], n, all.data() + r * own.size() + from);
    }
    from += n;
  } while (from < own.size());
  return all;
}

void Neighbors::await(const std::atomic<std::uint64_t>& count, std::uint64_t n) const {
  for (unsigned turn = 0; count.load(std::memory_order_acquire) < n; ++turn) wait_a_little(turn, yields_);
}

Message Neighbors::given_by(std::size_t r, std::int64_t place, std::int64_t n_bytes) const {
  const std::size_t begin = static_cast<std::size_t>(place), size = static_cast<std::size_t>(n_bytes);
  if (!size) return {};
  if (begin > memory_[r].size || memory_[r].size - begin < size)
    throw InputError("ShapeError", "Neighbors: rank " + std::to_string(r) + " gave a part outside its memory");
  return {memory_[r].data + begin, size};
}

void Neighbors::post(int slot, const std::vector<Message>& to) {
  Box::Slot& box = boxes_[rank_]->slots[slot];
  const std::uint64_t n = box.n_posted.load(std::memory_order_relaxed) + 1;
  std::vector<Span> spans(size());
  std::size_t end = size() * sizeof(Span), last = rank_;
  for (std::size_t r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    if (last != rank_ && to[r].data == to[last].data && to[r].size == to[last].size) {
      spans[r] = spans[last];  // the same for all
      continue;
    }
    spans[r] = {end, to[r].size};
    end += (to[r].size + 7) / 8 * 8;
    last = r;
  }
  Array<unsigned char>& parcel = parcels_[slot][n % 2];
  if (parcel.size() < end) parcel = Array<unsigned char>::shared(end + end / 2);
  std::memcpy(parcel.data(), spans.data(), size() * sizeof(Span));
  for (std::size_t r = 0; r < size(); ++r)
    if (spans[r].size) std::memcpy(parcel.data() + spans[r].begin, to[r].data, spans[r].size);
  box.place[n % 2] = place_in_shared(parcel.data());
  box.size[n % 2] = static_cast<std::int64_t>(end);
  box.n_posted.store(n, std::memory_order_release);
}

std::vector<Message> Neighbors::take(int slot) {
  const std::uint64_t n = boxes_[rank_]->slots[slot].n_posted.load(std::memory_order_relaxed);
  std::vector<Message> got(size());
  for (std::size_t r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const Box::Slot& box = boxes_[r]->slots[slot];
    await(box.n_posted, n);
    const Message parcel = given_by(r, box.place[n % 2], box.size[n % 2]);
    Span span{};
    if (parcel.size >= size() * sizeof(Span)) std::memcpy(&span, parcel.data + rank_ * sizeof(Span), sizeof(Span));
    if (!span.begin || span.begin > parcel.size || parcel.size - span.begin < span.size)
      throw InputError("ShapeError", "Neighbors: rank " + std::to_string(r) + " gave a part outside its parcel");
    got[r] = {parcel.data + span.begin, span.size};
  }
  return got;
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
  std::vector<std::int64_t> places(2 * given.size());  // [n][R], place and bytes
  for (std::size_t k = 0; k < given.size(); ++k) {
    const Message& part = given[k];
    if (k % n_ranks == rank_ || !part.size) continue;
    places[2 * k] = place_of(part);
    places[2 * k + 1] = static_cast<std::int64_t>(part.size);
    travelled_.sent += part.size;
    ++travelled_.n_messages;
  }
  const std::vector<std::int64_t> told = tell(places);
  lent_ = std::move(lent);  // all are here: they have read what was lent before
  copies_ = std::move(copies);
  // What rank r told of its k-th part.
  const auto part_of = [&](std::size_t r, std::size_t k) -> Message {
    const std::int64_t* const from = told.data() + r * places.size() + 2 * k;
    return given_by(r, from[0], from[1]);
  };
  std::vector<Message> got = given;
  for (std::size_t k = 0; k < given.size(); ++k) {
    const std::size_t r = k % n_ranks;
    if (r == rank_) continue;
    got[k] = part_of(r, k - r + rank_);
    travelled_.received += got[k].size;
  }
  return got;
}

std::vector<Message> Neighbors::gather(Message own, Lent lent) {
  return swap(std::vector<Message>(size(), own), std::move(lent));
}

}  // namespace sparsesnn
