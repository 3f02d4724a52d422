// Names of integers of fixed size, for kernels and for the CPU that stands in for a GPU.
//
// No header of the standard library: NVRTC has none.
#pragma once

namespace sparsesnn {

using int32 = int;
using uint32 = unsigned;
using uint16 = unsigned short;
using uint64 = unsigned long long;
using int64 = long long;

}  // namespace sparsesnn
