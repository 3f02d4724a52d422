#include "group_tree.h"

#include <algorithm>

#include "thread_pool.h"

namespace sparsesnn {
namespace {

// Appends what groups lo..hi-1 are made of; `whole` says which may stay in one piece.
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
  constexpr std::size_t piece = 4096;
  const int n_items = static_cast<int>((n + piece - 1) / piece);
  if (branches.size() == 2) {  // two halves of a batch: nothing has to wait
    const float *first = branches[0], *second = branches[1];
    parallel_for(n_items, [&](int item, int) {
      const std::size_t to = std::min(n, (item + 1) * piece);
      for (std::size_t k = item * piece; k < to; ++k) total[k] = first[k] + second[k];
    });
    return;
  }
  parallel_for(n_items, [&](int item, int) {
    const std::size_t from = item * piece, count = std::min(n - from, piece);
    std::vector<float> waiting;
    for (std::size_t b = 0; b < branches.size(); ++b) {
      waiting.insert(waiting.end(), branches[b] + from, branches[b] + from + count);
      for (int f = 0; f < folds[b]; ++f) {
        float *second = waiting.data() + waiting.size() - count, *first = second - count;
        for (std::size_t k = 0; k < count; ++k) first[k] += second[k];
        waiting.resize(waiting.size() - count);
      }
    }
    std::copy_n(waiting.data(), count, total + from);
  });
}

}  // namespace sparsesnn
