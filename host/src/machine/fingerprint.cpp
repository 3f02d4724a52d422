#include "fingerprint.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "host/src/data/random.h"
#include "thread_pool.h"

namespace sparsesnn {
namespace {

// A bijection of `hash` for every word and of the word for every hash, so a change of one word always changes it.
inline std::uint64_t fold(std::uint64_t hash, std::uint64_t word) {
  const std::uint64_t product = (hash ^ word) * 0xD6E8FEB86659FD93u;
  return product ^ product >> 32;
}

// Eight lanes: a multiplication waits for the one before it, but lanes do not wait for one another.
std::uint64_t fingerprint_of_piece(const unsigned char* data, std::size_t n_bytes) {
  constexpr std::size_t n_lanes = 8, word = sizeof(std::uint64_t);
  std::uint64_t lane[n_lanes];
  for (std::size_t k = 0; k < n_lanes; ++k) lane[k] = splitmix_step * (k + 1);
  std::size_t at = 0;
  for (; at + n_lanes * word <= n_bytes; at += n_lanes * word) {
    std::uint64_t words[n_lanes];
    std::memcpy(words, data + at, sizeof(words));
    for (std::size_t k = 0; k < n_lanes; ++k) lane[k] = fold(lane[k], words[k]);
  }
  for (std::size_t k = 0; at < n_bytes; ++k, at += word) {
    std::uint64_t rest = 0;
    std::memcpy(&rest, data + at, std::min(word, n_bytes - at));
    lane[k] = fold(lane[k], rest);
  }
  std::uint64_t hash = finalized(n_bytes + splitmix_step);
  for (const std::uint64_t one : lane) hash = finalized(hash ^ one);
  return hash;
}

}  // namespace

std::uint64_t fingerprint(const void* data, std::size_t n_bytes) {
  constexpr std::size_t piece = std::size_t{1}
                                << 18;  // worth a thread; a fixed size, so that the result does not depend on threads
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  if (n_bytes <= piece) return fingerprint_of_piece(bytes, n_bytes);
  std::vector<std::uint64_t> of((n_bytes + piece - 1) / piece);
  parallel_for(static_cast<int>(of.size()), [&](int k, int) {
    const std::size_t from = static_cast<std::size_t>(k) * piece;
    of[static_cast<std::size_t>(k)] = fingerprint_of_piece(bytes + from, std::min(piece, n_bytes - from));
  });
  return fingerprint(of.data(), of.size() * sizeof(std::uint64_t));
}

}  // namespace sparsesnn
