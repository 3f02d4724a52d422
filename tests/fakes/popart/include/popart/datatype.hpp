// Fake PopART, for tests: the element types that tensors of ops have here.
#pragma once

namespace popart {

enum class DataType { UNDEFINED, FLOAT, INT32 };

}  // namespace popart
