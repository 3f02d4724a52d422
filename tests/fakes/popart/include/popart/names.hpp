// Fake PopART, for tests: names of plain types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace popart {

using InIndex = int;
using OutIndex = int;
using TensorId = std::string;
using OpDomain = std::string;
using OpType = std::string;
using OpVersion = int;
using Shape = std::vector<std::int64_t>;

}  // namespace popart
