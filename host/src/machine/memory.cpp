#include "memory.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <vector>

namespace sparsesnn {
namespace {

constexpr std::size_t line = 64;  // room for the header before each block, and its alignment

struct Header {
  std::size_t size;  // the size of the block
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

// Limit of the bytes kept unused: enough for a step of a large network, and at most an eighth of the machine's memory.
std::size_t most_kept() {
  static const std::size_t bytes = std::max(std::size_t{256} << 20, physical_memory() / 8);
  return bytes;
}

// Up to a quarter more: four sizes for each power of two, so that lists of nearly equal length share blocks.
std::size_t rounded(std::size_t n_bytes) {
  const std::size_t step = std::max(line, std::bit_floor(n_bytes) / 4);
  return (n_bytes + step - 1) / step * step;
}

// The class of the largest of these sizes that is not above n_bytes.
std::size_t size_class(std::size_t n_bytes) {
  const int power = std::bit_width(n_bytes) - 1;
  return 4 * static_cast<std::size_t>(power) + (power < 2 ? 0 : n_bytes >> (power - 2) & 3);
}

struct Block {
  std::size_t size;
  void* memory;
};

struct Kept {
  std::mutex mutex;
  std::array<std::vector<Block>, 4 * 64> blocks;  // by size class, the last released at the end
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

// Takes one of the smallest kept blocks that is large enough and not far too large. The caller holds the lock.
void* take(Kept& k, std::size_t size, bool is_shared) {
  for (std::size_t c = size_class(size); c <= size_class(2 * size); ++c) {
    std::vector<Block>& blocks = k.blocks[c];
    for (std::size_t j = blocks.size(); j--;) {
      const Block found = blocks[j];
      if (found.size < size) continue;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(j));
      k.n_bytes -= found.size;
      return begin_block(found.memory, {found.size, is_shared});
    }
  }
  return nullptr;
}

// Shared memory is cut into blocks from its beginning on; released blocks are kept.
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

// Address space of twice the memory, because sizes that change leave gaps, but little enough that a process can map the
// memory of a hundred others.
void Shared::make() {
#if defined(__linux__) && defined(MFD_CLOEXEC)
  std::random_device random;  // by the name other processes recognize the file
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
  const std::size_t size = rounded(n_bytes + line);
  {
    Kept& k = kept();
    const std::lock_guard lock(k.mutex);
    if (void* memory = take(k, size, false)) return memory;
  }
  return begin_block(std::aligned_alloc(line, size), {size, false});
}

void* allocate_shared(std::size_t n_bytes) {
  Shared& s = shared_store();
  const std::lock_guard lock(s.kept.mutex);
  if (!s.mine()) return allocate(n_bytes);
  if (n_bytes > s.n_bytes) throw std::bad_alloc();
  const std::size_t size = (rounded(n_bytes + line) + 4095) / 4096 * 4096;
  if (void* memory = take(s.kept, size, true)) return memory;
  if (size > s.n_bytes - s.n_used) throw std::bad_alloc();
  s.n_used += size;
  return begin_block(s.data + s.n_used - size, {size, true});
}

void release(void* memory) noexcept {
  if (!memory) return;
  void* block = static_cast<char*>(memory) - line;
  const auto [size, is_shared] = *static_cast<Header*>(block);
  try {
    Kept& k = is_shared ? shared_store().kept : kept();
    const std::lock_guard lock(k.mutex);
    if (is_shared || k.n_bytes + size <= most_kept()) {
      k.blocks[size_class(size)].push_back({size, block});
      k.n_bytes += size;
      return;
    }
  } catch (...) {  // no memory to record the block: free it
  }
  if (!is_shared) std::free(block);
}

SharedMemory shared_memory() {
  Shared& s = shared_store();
  const std::lock_guard lock(s.kept.mutex);
  if (!s.owner) s.make();
  return s.mine() ? s : SharedMemory();
}

std::int64_t place_in_shared(const void* data) {
  const SharedMemory memory = shared_memory();
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(memory.data);
  return at >= begin && at - begin < memory.n_bytes ? static_cast<std::int64_t>(at - begin) : -1;
}

void release_kept() noexcept {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  for (std::vector<Block>& blocks : k.blocks) {
    for (const Block& one : blocks) std::free(one.memory);
    blocks.clear();
  }
  k.n_bytes = 0;
#ifdef __linux__
  Shared& s = shared_store();
  const std::lock_guard also(s.kept.mutex);
  if (!s.mine()) return;
  for (const std::vector<Block>& blocks : s.kept.blocks)
    for (const Block& one : blocks) madvise(one.memory, one.size, MADV_REMOVE);  // its addresses stay reserved
#endif
}

}  // namespace sparsesnn
