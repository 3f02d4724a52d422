#pragma once

namespace poplar {

// The layouts of a vector field that exist on Mk2 and that the codelets use.
enum class VectorLayout { SPAN, ONE_PTR };

}  // namespace poplar
