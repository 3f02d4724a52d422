// Faults that show only when a vertex runs. It runs on copies of its data, several times:
//
//   poison   elements not written yet hold one pattern in one run and another in the next. An output element that
//            differs depends on them: a read before the first write. One that still holds both patterns was not
//            written.
//   order    with the workers in reverse order the result must be the same: on the device they run in parallel.
//   alone    each worker run separately shows which bytes it changes. A tile stores 4 bytes at once, so two workers
//            that change bytes of one word overwrite each other, whichever elements they meant.
//   margin   bytes before and after each region must stay as they were.
//
// Each region begins at an address with the alignment that its field promises, and no more (`Placed`); words are
// counted from there.
//
// A worker that writes an element's old value is not noticed; it will be in another step.
#include <algorithm>
#include <cstring>

#include "compiled.h"

#ifdef SPARSESNN_CHECK_CODELETS
// A fault that the sanitizer finds ends the process by a signal, not by a silent exit: pytest then names the test.
extern "C" __attribute__((visibility("default"))) const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}
#endif

namespace sparsesnn::emulator {

using poplar::poplar_error;

namespace {

// For readable elements: values that are harmless as an index or a count, and that no sum hides. For write-only ones:
// other values, so that a copy of poison is not mistaken for poison that was not overwritten.
void poison_element(unsigned char* at, const Field& field, int which) {
  if (field.direction == Direction::output) {
    std::memset(at, which ? 0x4b : 0xc9, field.type.bytes());
  } else if (field.type == poplar::HALF) {
    const half x = which ? 5003.25f : -4099.5f;
    std::memcpy(at, &x, sizeof(x));
  } else if (field.type == poplar::FLOAT) {
    const float x = which ? 5003.25f : -4099.5f;
    std::memcpy(at, &x, sizeof(x));
  } else {
    std::memset(at, 0, field.type.bytes());
    at[0] = static_cast<unsigned char>(which);
  }
}

}  // namespace

// The vertex's regions with a margin around each; unwritten elements poisoned. With `only_region` ≥ 0 all other regions
// get pattern 0.
FaultFinder::Image FaultFinder::image(const BoundVertex& v, int poison, int only_region) const {
  Image image;
  for (std::size_t k = 0; k < v.regions.size(); ++k) {
    const Region& r = v.regions[k];
    const std::size_t size = r.field->type.bytes();
    Placed bytes(r.bytes(), r.field->min_align);
    unsigned char* at = bytes.data();
    const int which = only_region < 0 || only_region == static_cast<int>(k) ? poison : 0;
    for (const poplar::Piece& p : r.pieces) {
      std::memcpy(at, c_.address(p), (p.end - p.begin) * size);
      for (std::size_t i = p.begin; i < p.end; ++i, at += size)
        if (r.field->direction == Direction::output || !c_.written_[p.variable].get(i))
          poison_element(at, *r.field, which);
    }
    image.push_back(std::move(bytes));
  }
  return image;
}

void FaultFinder::compute(BoundVertex& v, Image& image, const std::vector<unsigned>& workers) const {
  std::vector<unsigned char*> data, before;
  for (std::size_t k = 0; k < image.size(); ++k) {
    data.push_back(image[k].data());
    before.push_back(v.regions[k].data);
  }
  v.point_at(data);
  for (const unsigned worker : workers) v.type->compute(v.object.data(), worker);
  v.point_at(before);
  for (std::size_t k = 0; k < image.size(); ++k) {
    if (image[k].is_damaged())
      throw poplar_error(c_.region_name(v, v.regions[k]) + ": writes outside its " + std::to_string(v.regions[k].n) +
                         " elements");
  }
}

void FaultFinder::run(BoundVertex& v) {
  std::vector<unsigned> ascending, descending;
  for (unsigned w = 0; w < v.type->n_workers; ++w) ascending.push_back(w);
  descending.assign(ascending.rbegin(), ascending.rend());

  const Image start0 = image(v, 0, -1), start1 = image(v, 1, -1);
  Image end0 = start0, end1 = start1, reverse = start0;
  compute(v, end0, ascending);
  compute(v, end1, ascending);
  compute(v, reverse, descending);

  for (std::size_t k = 0; k < v.regions.size(); ++k) {
    const Region& r = v.regions[k];
    const std::size_t size = r.field->type.bytes();
    const auto element = [&](const Image& image, std::size_t i) { return image[k].data() + i * size; };
    if (r.field->direction == Direction::input) continue;
    std::size_t i = 0;
    for (const poplar::Piece& p : r.pieces)
      for (std::size_t at = p.begin; at < p.end; ++at, ++i) {
        const bool known = r.field->direction == Direction::in_out && c_.written_[p.variable].get(at);
        const bool untouched = !known && !std::memcmp(element(end0, i), element(start0, i), size) &&
                               !std::memcmp(element(end1, i), element(start1, i), size);
        if (untouched) continue;
        if (std::memcmp(element(end0, i), element(end1, i), size)) {
          std::string culprit = "data not written yet";
          for (std::size_t j = 0; j < v.regions.size(); ++j) {
            Image probe = image(v, 1, static_cast<int>(j));
            const Image clean = probe;
            compute(v, probe, ascending);
            if (std::memcmp(element(probe, i), element(end0, i), size) &&
                (j != k || std::memcmp(element(probe, i), element(clean, i), size)))
              culprit = c_.region_name(v, v.regions[j]);
          }
          throw poplar_error(c_.region_name(v, r) + ": element " + std::to_string(i) +
                             " depends on data read before it was written: " + culprit);
        }
        if (std::memcmp(element(end0, i), element(reverse, i), size))
          throw poplar_error(c_.region_name(v, r) + ": element " + std::to_string(i) +
                             " depends on the order of the workers");
        c_.written_[p.variable].set(at, at + 1);
      }
  }
  if (ascending.size() == 1) return;

  std::vector<std::vector<signed char>> owner;  // per region and word: the worker that changed it
  for (const Region& r : v.regions) owner.emplace_back(r.bytes() / 4 + 2, static_cast<signed char>(-1));
  for (const unsigned w : ascending) {
    Image alone = start0;
    compute(v, alone, {w});
    for (std::size_t k = 0; k < v.regions.size(); ++k) {
      const Region& r = v.regions[k];
      if (r.field->direction == Direction::input) continue;
      const unsigned char *a = start0[k].data(), *b = alone[k].data();
      const std::size_t shift = r.field->min_align % 4;  // of the region's beginning in its word
      for (std::size_t i = 0; i < r.bytes(); ++i) {
        if (a[i] == b[i]) continue;
        signed char& who = owner[k][(i + shift) / 4];
        if (who >= 0 && who != static_cast<signed char>(w))
          throw poplar_error(c_.region_name(v, r) + ": workers " + std::to_string(int(who)) + " and " +
                             std::to_string(w) + " both write the 4-byte word of element " +
                             std::to_string(i / r.field->type.bytes()) + "; a tile stores whole words");
        who = static_cast<signed char>(w);
      }
    }
  }
}

}  // namespace sparsesnn::emulator
