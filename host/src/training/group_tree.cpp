#include "group_tree.h"

#include <algorithm>

#include "host/src/machine/thread_pool.h"

namespace sparsesnn {
namespace {

// Appends the branches of groups lo..hi-1; `whole` returns whether groups may stay in one piece.
template <class Whole>
void divide(int lo, int hi, const Whole& whole, const std::vector<int>& edges, std::vector<Branch>& out) {
  if (whole(lo, hi)) {
    out.push_back({lo, hi, 0});
  } else if (hi - lo <= leaf_groups) {
    const int edge = *std::upper_bound(edges.begin(), edges.end(), lo);
    out.push_back({lo, edge, 0});
    for (int g = edge; g < hi; ++g) out.push_back({g, g + 1, 1});
  } else {
    const int middle = lo + (hi - lo + 1) / 2;
    divide(lo, middle, whole, edges, out);
    divide(middle, hi, whole, edges, out);
    ++out.back().folds;
  }
}

constexpr std::size_t block = 4096;  // numbers of a pending sum that stay in cache

// Adds up numbers begin..end-1.
void add_range(const std::vector<const float*>& branches, const std::vector<int>& folds, std::size_t begin,
               std::size_t end, float* total) {
  if (branches.size() == 2) {  // two halves of a batch: no pending sums
    const float *first = branches[0], *second = branches[1];
    for (std::size_t k = begin; k < end; ++k) total[k] = first[k] + second[k];
    return;
  }
  int n_waiting = 0, most = 0;
  for (const int n : folds) {
    if (n == 0) most = std::max(most, ++n_waiting);
    n_waiting -= std::max(0, n - 1);
  }
  std::vector<float> waiting(block * most);
  for (std::size_t from = begin; from < end; from += block) {
    const std::size_t count = std::min(end - from, block);
    float* next = waiting.data();  // after the pending sums
    for (std::size_t b = 0; b < branches.size(); ++b) {
      const float* branch = branches[b] + from;
      if (folds[b] == 0) {
        std::copy_n(branch, count, next);
        next += block;
        continue;
      }
      float* last = next - block;
      for (std::size_t k = 0; k < count; ++k) last[k] += branch[k];
      for (int f = 1; f < folds[b]; ++f) {
        last -= block;
        for (std::size_t k = 0; k < count; ++k) last[k] += last[block + k];
      }
      next = last + block;
    }
    std::copy_n(waiting.data(), count, total + from);
  }
}

}  // namespace

std::vector<Branch> find_branches(int n_groups, const std::vector<int>& edges) {
  std::vector<Branch> out;
  const auto whole = [&](int lo, int hi) {
    const auto edge = std::upper_bound(edges.begin(), edges.end(), lo);
    return edge == edges.end() || *edge >= hi;
  };
  if (n_groups > 0) divide(0, n_groups, whole, edges, out);
  return out;
}

std::vector<Branch> find_leaves(int lo, int hi) {
  std::vector<Branch> out;
  if (lo < hi) divide(lo, hi, [](int a, int b) { return b - a <= leaf_groups; }, {}, out);
  return out;
}

void add_branches(const std::vector<const float*>& branches, const std::vector<int>& folds, std::size_t n,
                  float* total) {
  constexpr std::size_t piece = 4 * block;
  parallel_for(static_cast<int>((n + piece - 1) / piece), [&](int item, int) {
    add_range(branches, folds, item * piece, std::min(n, (item + 1) * piece), total);
  });
}

void add_active_rows(const std::vector<const float*>& branches, const std::vector<int>& folds, const bool* active,
                     std::size_t n_rows, std::size_t length, float* total, const std::vector<float*>& copies) {
  constexpr std::size_t piece = 64;
  parallel_for(static_cast<int>((n_rows + piece - 1) / piece), [&](int item, int) {
    const std::size_t to = std::min(n_rows, (item + 1) * piece);
    for (std::size_t begin = item * piece; begin < to;) {
      std::size_t end = begin;
      while (end < to && active[end]) ++end;
      if (end > begin) {
        add_range(branches, folds, begin * length, end * length, total);
        for (float* copy : copies) std::copy_n(total + begin * length, (end - begin) * length, copy + begin * length);
      }
      begin = end + 1;
    }
  });
}

}  // namespace sparsesnn
