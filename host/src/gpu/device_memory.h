// The memory of an emulated device: arrays with a cell for each byte.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>

#include "host/src/gpu/shadow.h"

namespace sparsesnn::emulated {

constexpr int undefined_byte = 0xff;  // floats are NaN, integers -1

// Zeros from the operating system, as many as are touched.
inline char* reserve(size_t n_bytes) {
  void* memory = mmap(nullptr, n_bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

struct Array {
  std::string what;
  uint64_t begin, end;
  Cell* cells;
  bool is_free = false;

  uint64_t n_bytes() const { return end - begin; }
  Cell* cells_at(uint64_t address) const { return cells + (address - begin); }
};

class DeviceMemory {
 public:
  ~DeviceMemory() {
    for (auto& [begin, array] : arrays_) {
      if (!array.is_free) munmap(array.cells, array.n_bytes() * sizeof(Cell) + 1);
      munmap(data(array), gap() + array.n_bytes() + 1);
    }
  }

  // An address that is a multiple of 256 and of nothing more; 0: the host has no memory.
  uint64_t allocate(uint64_t n_bytes, const char* what) {
    char* memory = reserve(gap() + n_bytes);
    if (!memory) return 0;
    char* cells = reserve(n_bytes * sizeof(Cell));
    if (!cells) return munmap(memory, gap() + n_bytes + 1), 0;
    const uint64_t begin = reinterpret_cast<uint64_t>(memory) + gap();
    std::memset(memory + gap(), undefined_byte, n_bytes);
    arrays_[begin] = {what, begin, begin + n_bytes, reinterpret_cast<Cell*>(cells)};
    return begin;
  }

  // The addresses are not used again, so that accesses to them are found.
  void free(Array& array) {
    munmap(array.cells, array.n_bytes() * sizeof(Cell) + 1);
    madvise(data(array), gap() + array.n_bytes() + 1, MADV_DONTNEED);
    array.is_free = true;
  }

  // The array that an address lies in, or one past its end. Two arrays never touch.
  Array* find(uint64_t address) {
    Recent& recent = recent_[address / 64 % n_recent];
    if (recent.array && recent.address == address) return recent.array;
    auto after = arrays_.upper_bound(address);
    if (after == arrays_.begin() || address > std::prev(after)->second.end) return nullptr;
    recent = {address, &std::prev(after)->second};
    return recent.array;
  }

 private:
  struct Recent {
    uint64_t address;
    Array* array;
  };

  static size_t gap() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)) + 256; }
  static char* data(const Array& array) { return reinterpret_cast<char*>(array.begin - gap()); }

  static constexpr int n_recent = 256;
  std::map<uint64_t, Array> arrays_;
  Recent recent_[n_recent] = {};
};

}  // namespace sparsesnn::emulated
