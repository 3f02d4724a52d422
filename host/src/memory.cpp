#include "memory.h"

#ifdef __linux__
#include <unistd.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

namespace sparsesnn {
namespace {

constexpr std::size_t line = 64;                  // the header before each block, and its alignment
constexpr std::size_t smallest_kept = 16 * 1024;  // smaller blocks are malloc's own business

// Bytes kept while nobody uses them: what a step of a large network needs, and no more than an eighth of the machine's.
std::size_t most_kept() {
  static const std::size_t bytes = [] {
    constexpr std::size_t least = std::size_t{256} << 20;
#ifdef __linux__
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    if (pages > 0 && page > 0) return std::max(least, static_cast<std::size_t>(pages) / 8 * page);
#endif
    return least;
  }();
  return bytes;
}

// Up to a quarter more: four sizes for each power of two, so that lists of nearly equal length share blocks.
std::size_t rounded(std::size_t n_bytes) {
  if (n_bytes < smallest_kept) return (n_bytes + line - 1) / line * line;
  const std::size_t step = std::bit_floor(n_bytes) / 4;
  return (n_bytes + step - 1) / step * step;
}

struct Kept {
  std::mutex mutex;
  std::multimap<std::size_t, void*> blocks;  // by size
  std::size_t n_bytes = 0;
};

// Never destroyed: arrays may outlive the static objects of this file.
Kept& kept() {
  static Kept* const one = new Kept;
  return *one;
}

}  // namespace

void* allocate(std::size_t n_bytes) {
  if (n_bytes > SIZE_MAX / 4) throw std::bad_alloc();
  const std::size_t size = rounded(n_bytes) + line;
  if (size >= smallest_kept) {
    Kept& k = kept();
    const std::lock_guard lock(k.mutex);
    // The smallest block that is large enough, if it is not far too large.
    if (const auto found = k.blocks.lower_bound(size); found != k.blocks.end() && found->first <= 2 * size) {
      void* block = found->second;
      k.n_bytes -= found->first;
      k.blocks.erase(found);
      return static_cast<char*>(block) + line;
    }
  }
  void* block = std::aligned_alloc(line, size);
  if (!block) throw std::bad_alloc();
  *static_cast<std::size_t*>(block) = size;
  return static_cast<char*>(block) + line;
}

void release(void* memory) noexcept {
  if (!memory) return;
  void* block = static_cast<char*>(memory) - line;
  const std::size_t size = *static_cast<std::size_t*>(block);
  if (size >= smallest_kept) try {
      Kept& k = kept();
      const std::lock_guard lock(k.mutex);
      if (k.n_bytes + size <= most_kept()) {
        k.blocks.emplace(size, block);
        k.n_bytes += size;
        return;
      }
    } catch (...) {  // no memory to note it down: give it back
    }
  std::free(block);
}

void release_kept() noexcept {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  for (const auto& [size, block] : k.blocks) std::free(block);
  k.blocks.clear();
  k.n_bytes = 0;
}

}  // namespace sparsesnn
