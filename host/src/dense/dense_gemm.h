// Matrix products of the dense baseline in float32: c[M, N] = start + a·b, on all threads of the pool.
//
// Reason for our own: PyTorch's product (MKL) takes slow paths on other makers' processors, at half the speed of the
// same machine; and spikes can be read as the bytes in which they are stored. After Goto & van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (2008): b is packed into panels as wide as the register tile, a is packed
// block by block, and a tile of c stays in registers while block_depth products are added to each of its elements.
//
// Order of sums: an element of c starts at `start`; then, for each block_depth rows of b in their order, the sum of the
// products (by fused multiply-adds, ascending, from zero) is added. So its bits depend neither on the number of threads
// nor on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// Whether the instruction set in use (isa.h) has a kernel here (avx512, and avx2 on machines with fused multiply-adds),
// and it is faster than PyTorch's product (MKL), which is at its best on Intel's processors.
bool dense_gemm_suits();

// b[K, N] (or bᵀ[N, K], if `transposed`), rearranged: for each block of block_depth rows its panels, a panel as rows of
// `panel_width` floats; columns beyond N are zeros. The instruction set in use sets the panels' width.
class PackedMatrix {
 public:
  PackedMatrix(const float* b, bool transposed, int depth, int width);
  ~PackedMatrix();
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;

  int depth() const { return depth_; }  // K
  int width() const { return width_; }  // N
  int panel_width() const { return panel_width_; }
  int n_panels() const { return (width_ - 1) / panel_width_ + 1; }
  // Panel `panel` of the block that begins at row `first`, which has `rows` rows.
  const float* panel(int first, int rows, int panel) const {
    return data_ + static_cast<std::size_t>(panel_width_) *
                       (static_cast<std::size_t>(first) * n_panels() + static_cast<std::size_t>(rows) * panel);
  }

 private:
  int depth_, width_, panel_width_;
  float* data_;
};

// The start of an element of c: zero, its old value, or its column's bias.
enum class Start { zero, itself, bias };

// a[M, K] or, transposed, aᵀ[K, M]; A is float, or std::uint8_t: spikes, where anything but 0 counts as 1.
template <class A>
struct Product {
  const A* a;
  bool transposed;
  int rows;  // M
  const PackedMatrix* b;
  float* c;  // [M, N]
  Start start;
  const float* bias;  // [N], for Start::bias
};

template <class A>
void multiply(const Product<A>& product);

}  // namespace sparsesnn
