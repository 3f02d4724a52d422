// Fake PopART, for tests: the element types of ops' tensors.
#pragma once

namespace popart {

enum class DataType { UNDEFINED, FLOAT, INT32 };

}  // namespace popart
