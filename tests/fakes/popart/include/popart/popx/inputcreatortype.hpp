// Fake PopART, for tests.
#pragma once

namespace popart {
namespace popx {

enum class InputCreatorType { CanCreate, Deadend };

}  // namespace popx
}  // namespace popart
