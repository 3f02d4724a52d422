// The optimiser's step over one parameter, all threads.
#pragma once

#include <cstddef>

#include "../../codelets/records.h"

namespace sparsesnn {

// w, m, s, d: n floats each; see codelets/adam.h.
void adam_step(float* w, float* m, float* s, const float* d, std::size_t n, const AdamStep& step);

}  // namespace sparsesnn
