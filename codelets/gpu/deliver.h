// Deliver: adds the weights of a list to a lane's columns of the currents of one tile, ids ascending, one after the
// other. A spike with a value adds value·weight; 1·weight is the weight. Four rows are on their way at a time.
// weight: packed, see layout.h. Cost: 64·COLUMNS bytes from L2 per id and tile, half as many with bfloat16.
#pragma once

#include "codelets/gpu/layout.h"

namespace sparsesnn::SPARSESNN_ISA {

template <int columns>
inline void deliver(float (&current)[columns], Global<const Weight> weight, int n_tiles, int tile, int lane,
                    Global<const uint16> ids, Global<const float> values, int begin, int n_ids) {
  constexpr int n_together = 4;
  for (int j = 0; j < n_ids; j += n_together) {
    float rows[n_together][columns];
#pragma unroll
    for (int r = 0; r < n_together; ++r)
      if (j + r < n_ids) load_columns(rows[r], weight, packed_at<columns>(ids[begin + j + r], n_tiles, tile, lane));
#pragma unroll
    for (int r = 0; r < n_together; ++r)
      if (j + r < n_ids) {
        const float value = values ? static_cast<float>(values[begin + j + r]) : 1.0f;
        for (int k = 0; k < columns; ++k) current[k] = current[k] + value * rows[r][k];
      }
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
