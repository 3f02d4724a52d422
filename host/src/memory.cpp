#include "memory.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>

#include "choices.h"

namespace sparsesnn {
namespace {

constexpr std::size_t line = 64;                  // room for the header before each block, and its alignment
constexpr std::size_t smallest_kept = 16 * 1024;  // smaller blocks are malloc's own business
constexpr std::size_t huge_page = 2 << 20, smallest_huge = 4 << 20;

struct Header {
  std::size_t size;  // of the block
  bool shared;
};

// Bytes of the machine's memory; 0: unknown.
std::size_t physical_memory() {
#ifdef __linux__
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  if (pages > 0 && page > 0) return static_cast<std::size_t>(pages) * page;
#endif
  return 0;
}

// Bytes kept while nobody uses them: what a step of a large network needs, and no more than an eighth of the machine's.
std::size_t most_kept() {
  static const std::size_t bytes = std::max(std::size_t{256} << 20, physical_memory() / 8);
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

void* begin_block(void* block, Header header) {
  if (!block) throw std::bad_alloc();
  *static_cast<Header*>(block) = header;
  return static_cast<char*>(block) + line;
}

// Of a kept block, the smallest that is large enough, if it is not far too large. The caller holds the lock.
void* take(Kept& k, std::size_t size, bool is_shared) {
  const auto found = k.blocks.lower_bound(size);
  if (found == k.blocks.end() || found->first > 2 * size) return nullptr;
  const auto [found_size, block] = *found;
  k.n_bytes -= found_size;
  k.blocks.erase(found);
  return begin_block(block, {found_size, is_shared});
}

// Shared memory is cut into blocks from its beginning on; what is released is kept.
struct Shared : SharedMemory {
  Kept kept;
  std::size_t n_used = 0;
  long owner = 0;  // the process

  void make();
  bool mine() const {
#ifdef __linux__
    return n_bytes && owner == getpid();
#else
    return false;
#endif
  }
};

Shared& shared_store() {
  static Shared* const one = new Shared;
  return *one;
}

// Twice as many addresses as there is memory, as sizes that change leave gaps, but few enough that a process can map
// the memory of a hundred others.
void Shared::make() {
#if defined(__linux__) && defined(MFD_CLOEXEC)
  std::random_device random;  // the name says to other processes that this is the file they look for
  std::string name = "sparsesnn";
  for (int k = 0; k < 4; ++k) (name += '-') += std::to_string(random());
  const std::size_t wanted = std::min(2 * physical_memory(), std::size_t{1} << 38);
  const int made = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (made < 0) return;
  void* mapped = MAP_FAILED;
  if (wanted && !ftruncate(made, static_cast<off_t>(wanted)))
    mapped = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, made, 0);
  if (mapped == MAP_FAILED) {
    close(made);
    return;
  }
  file = made;
  data = static_cast<char*>(mapped);
  n_bytes = wanted;
  owner = getpid();
#endif
}

}  // namespace

void* allocate(std::size_t n_bytes) {
  if (n_bytes > SIZE_MAX / 4) throw std::bad_alloc();
  const std::size_t size = rounded(n_bytes) + line;
  if (size >= smallest_kept) {
    Kept& k = kept();
    const std::lock_guard lock(k.mutex);
    if (void* memory = take(k, size, false)) return memory;
  }
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (choices.huge_pages && size >= smallest_huge) {
    const std::size_t whole = (size + huge_page - 1) / huge_page * huge_page;
    void* block = std::aligned_alloc(huge_page, whole);
    if (block) madvise(block, whole, MADV_HUGEPAGE);
    return begin_block(block, {size, false});
  }
#endif
  return begin_block(std::aligned_alloc(line, size), {size, false});
}

void* allocate_shared(std::size_t n_bytes) {
  Shared& s = shared_store();
  const std::lock_guard lock(s.kept.mutex);
  if (!s.mine()) return allocate(n_bytes);
  if (n_bytes > s.n_bytes) throw std::bad_alloc();
  const std::size_t size = (rounded(n_bytes) + line + 4095) / 4096 * 4096;
  if (void* memory = take(s.kept, size, true)) return memory;
  if (size > s.n_bytes - s.n_used) throw std::bad_alloc();
  s.n_used += size;
  return begin_block(s.data + s.n_used - size, {size, true});
}

void release(void* memory) noexcept {
  if (!memory) return;
  void* block = static_cast<char*>(memory) - line;
  const auto [size, is_shared] = *static_cast<Header*>(block);
  if (size >= smallest_kept || is_shared) try {
      Kept& k = is_shared ? shared_store().kept : kept();
      const std::lock_guard lock(k.mutex);
      if (is_shared || k.n_bytes + size <= most_kept()) {
        k.blocks.emplace(size, block);
        k.n_bytes += size;
        return;
      }
    } catch (...) {  // no memory to note it down: give it back
    }
  if (!is_shared) std::free(block);
}

SharedMemory shared_memory() {
  Shared& s = shared_store();
  const std::lock_guard lock(s.kept.mutex);
  if (!s.owner) s.make();
  return s.mine() ? s : SharedMemory();
}

void release_kept() noexcept {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  for (const auto& [size, block] : k.blocks) std::free(block);
  k.blocks.clear();
  k.n_bytes = 0;
#ifdef __linux__
  Shared& s = shared_store();
  const std::lock_guard also(s.kept.mutex);
  if (!s.mine()) return;
  for (const auto& [size, block] : s.kept.blocks) madvise(block, size, MADV_REMOVE);  // its addresses stay with us
#endif
}

}  // namespace sparsesnn
