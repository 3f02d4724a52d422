// A kernel of the tests: x ← factor·x.
#include "codelets/gpu/device.h"

namespace sparsesnn {

struct ScaleArgs {
  Global<float> x;
  int32 n;
  float factor;
};

KERNEL(scale, ScaleArgs, 256) {
  const int k = block_index() * block_size() + thread_index();
  if (k < a.n) a.x[k] = a.factor * a.x[k];
}

}  // namespace sparsesnn
