// The bandwidth of caches and memory for one thread; roofline.py compiles it for this machine.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX2__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
typedef unsigned Vector __attribute__((vector_size(WIDTH)));

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// Bytes per second of passing over `n_bytes` repeatedly for `seconds`: reading them, or reading, adding to and writing
// them, which counts the bytes twice. Integers are added, which compilers may do in any order.
double bandwidth(size_t n_bytes, int update, double seconds) {
  const size_t n = (n_bytes / (8 * sizeof(Vector)) + 1) * 8;
  Vector* data = aligned_alloc(sizeof(Vector), n * sizeof(Vector));
  if (!data) return 0;
  memset(data, 0, n * sizeof(Vector));
  Vector a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
  size_t n_rounds = 0;
  const double start = now();
  double elapsed = 0;
  for (size_t rounds = 1; elapsed < seconds; rounds *= 2) {
    for (size_t r = 0; r < rounds; ++r) {
      if (update)
        for (size_t k = 0; k < n; k += 8)
          for (size_t l = k; l < k + 8; ++l) data[l] += 1;
      else
        for (size_t k = 0; k < n; k += 8) {
          a += data[k], b += data[k + 1], c += data[k + 2], d += data[k + 3];
          e += data[k + 4], f += data[k + 5], g += data[k + 6], h += data[k + 7];
        }
      __asm__ volatile("" ::: "memory");  // each round must read again
    }
    n_rounds += rounds;
    elapsed = now() - start;
  }
  a += b + c + d + e + f + g + h;
  __asm__ volatile("" ::"r"(a[0] + a[WIDTH / 4 - 1]));
  free(data);
  return (double)n_rounds * n * sizeof(Vector) * (update ? 2 : 1) / elapsed;
}
