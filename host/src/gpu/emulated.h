// A CPU that stands in for a GPU in tests: the functions of codelets/gpu/device.h, with checks.
//
// Kernels are compiled against this header alone. Each thread of a block is a fiber. It calls the `Machine` that runs
// it (machine.h) for every access to memory, barrier, ballot and shuffle. The machine stops the launch with a message
// at the first access out of bounds, read of memory that nothing has written, race, or divergent barrier.
//
// Messages name the line of the kernel: a default argument is evaluated at the call.
#pragma once

#include "codelets/gpu/integers.h"

namespace sparsesnn {

namespace emulated {

struct Site {
  const char* file;
  int line;
};
#define SPARSESNN_SITE sparsesnn::emulated::Site site = {__builtin_FILE(), __builtin_LINE()}

enum class Access { read, write, atomic };

// n elements of `size` bytes from element k on, counted from an address of the host, or from a byte of shared memory.
struct Range {
  bool is_shared;
  uint64 address;
  int64 k;
  int size, n, alignment;
};

// The thread that runs, and its calls.
struct Machine {
  int thread, block, n_threads, n_blocks;

  // The host's address of a range that the thread may access.
  virtual void* reach(const Range& range, Access how, Site site) = 0;
  // The address of element k, which lies in the array of the range's address, or one past its end.
  virtual uint64 moved(const Range& range, Site site) = 0;
  virtual void barrier(Site site) = 0;
  virtual void warp_barrier(Site site) = 0;
  virtual uint32 ballot(bool condition, Site site) = 0;
  // The value that another lane of the warp hands over.
  virtual uint64 of_lane(uint64 value, int lane, Site site) = 0;
};

// A kernel, as the machine sees it; `run` runs one thread.
struct Entry {
  void (*run)(Machine* machine, const void* arguments);
  int arguments_bytes, max_threads;
};

static Machine* machine;

// An index, and the line that has it.
struct At {
  int64 k;
  Site site;

  template <class Integer>
  At(Integer k, SPARSESNN_SITE) : k(static_cast<int64>(k)), site(site) {}
};

template <class T>
constexpr bool is_const = false;
template <class T>
constexpr bool is_const<const T> = true;

// An element that may be written. It turns into its value, but no variable can hold it.
template <class T, bool is_shared>
class Element;

template <class T, bool is_shared>
struct Pointer {
  uint64 address;

  Pointer() = default;
  Pointer(decltype(nullptr)) : address(0) {}
  explicit Pointer(uint64 address) : address(address) {}
  operator Pointer<const T, is_shared>() const { return Pointer<const T, is_shared>(address); }
  explicit operator bool() const { return address != 0; }
  bool operator==(const Pointer& other) const { return address == other.address; }

  auto operator[](At at) const {
    if constexpr (is_const<T>)
      return *static_cast<T*>(reach(at.k, 1, Access::read, at.site));
    else
      return Element<T, is_shared>(*this, at);
  }
  Pointer operator+(At at) const { return Pointer(machine->moved(range(at.k, 1), at.site)); }
  Pointer operator-(At at) const { return *this + At(-at.k, at.site); }
  Pointer& operator+=(At at) { return *this = *this + at; }

  // n elements from k on, aligned to all of them.
  void* reach(int64 k, int n, Access how, Site site) const { return machine->reach(range(k, n), how, site); }

 private:
  Range range(int64 k, int n) const {
    return {is_shared, address, k, int(sizeof(T)), n, n > 1 ? n * int(sizeof(T)) : int(alignof(T))};
  }
};

template <class T, bool is_shared>
class Element {
 public:
  Element(Pointer<T, is_shared> array, At at) : array_(array), at_(at) {}
  Element(const Element&) = delete;

  operator T() const&& { return read(); }
  void operator=(T x) && { write(x); }
  void operator=(Element&& x) && { write(x.read()); }
  void operator+=(T x) && { write(read() + x); }
  void operator-=(T x) && { write(read() - x); }
  void operator*=(T x) && { write(read() * x); }
  void operator|=(T x) && { write(read() | x); }
  void operator&=(T x) && { write(read() & x); }
  void operator^=(T x) && { write(read() ^ x); }

 private:
  T read() const { return *static_cast<T*>(array_.reach(at_.k, 1, Access::read, at_.site)); }
  void write(T x) { *static_cast<T*>(array_.reach(at_.k, 1, Access::write, at_.site)) = x; }

  Pointer<T, is_shared> array_;
  At at_;
};

// Values of up to 8 bytes between lanes.
template <class T>
T of_lane(T x, int lane, Site site) {
  uint64 bits = 0;
  __builtin_memcpy(&bits, &x, sizeof(T));
  bits = machine->of_lane(bits, lane, site);
  __builtin_memcpy(&x, &bits, sizeof(T));
  return x;
}

template <class T, bool is_shared>
T& atomic(Pointer<T, is_shared> array, int64 k, Site site) {
  return *static_cast<T*>(array.reach(k, 1, Access::atomic, site));
}

}  // namespace emulated

template <class T>
using Global = emulated::Pointer<T, false>;
template <class T>
using Shared = emulated::Pointer<T, true>;

#define KERNEL(name, Args, max_threads)                                                                    \
  static void name##_thread(const Args& a);                                                                \
  extern "C" __attribute__((visibility("default"))) const sparsesnn::emulated::Entry* sparsesnn_##name() { \
    static constexpr sparsesnn::emulated::Entry entry = {                                                  \
        [](sparsesnn::emulated::Machine* machine, const void* arguments) {                                 \
          sparsesnn::emulated::machine = machine;                                                          \
          name##_thread(*static_cast<const Args*>(arguments));                                             \
        },                                                                                                 \
        sizeof(Args), max_threads};                                                                        \
    return &entry;                                                                                         \
  }                                                                                                        \
  static void name##_thread(const Args& a)

inline int thread_index() { return emulated::machine->thread; }
inline int block_size() { return emulated::machine->n_threads; }
inline int block_index() { return emulated::machine->block; }
inline int grid_size() { return emulated::machine->n_blocks; }

inline void barrier(SPARSESNN_SITE) { emulated::machine->barrier(site); }
inline void warp_barrier(SPARSESNN_SITE) { emulated::machine->warp_barrier(site); }
inline uint32 ballot(bool condition, SPARSESNN_SITE) { return emulated::machine->ballot(condition, site); }

template <class T>
inline T shuffle_xor(T x, int mask, SPARSESNN_SITE) {
  return emulated::of_lane(x, thread_index() % 32 ^ mask, site);
}
template <class T>
inline T shuffle_of(T x, int lane, SPARSESNN_SITE) {
  return emulated::of_lane(x, lane, site);
}

template <bool is_shared>
inline void atomic_or(emulated::Pointer<uint32, is_shared> words, int64 k, uint32 bits, SPARSESNN_SITE) {
  emulated::atomic(words, k, site) |= bits;
}
template <bool is_shared>
inline int atomic_add(emulated::Pointer<int32, is_shared> counters, int64 k, int n, SPARSESNN_SITE) {
  int& counter = emulated::atomic(counters, k, site);
  return (counter += n) - n;
}

inline int count_bits_of(uint32 x) { return __builtin_popcount(x); }
inline int count_bits_of(uint64 x) { return __builtin_popcountll(x); }
inline int lowest_bit(uint32 x) { return __builtin_ctz(x); }

template <class T>
inline Shared<T> shared_memory(int first_byte) {
  return Shared<T>(static_cast<uint64>(first_byte));
}

template <int n>
inline void load_columns(float (&columns)[n], Global<const float> x, int64 k, SPARSESNN_SITE) {
  const float* from = static_cast<const float*>(x.reach(k, n, emulated::Access::read, site));
  for (int c = 0; c < n; ++c) columns[c] = from[c];
}
template <int n>
inline void load_columns(float (&columns)[n], Global<const uint16> x, int64 k, SPARSESNN_SITE) {
  const uint16* from = static_cast<const uint16*>(x.reach(k, n, emulated::Access::read, site));
  for (int c = 0; c < n; ++c) columns[c] = __builtin_bit_cast(float, static_cast<uint32>(from[c]) << 16);
}
template <int n>
inline void store_columns(Global<float> x, int64 k, const float (&columns)[n], SPARSESNN_SITE) {
  float* to = static_cast<float*>(x.reach(k, n, emulated::Access::write, site));
  for (int c = 0; c < n; ++c) to[c] = columns[c];
}

}  // namespace sparsesnn
