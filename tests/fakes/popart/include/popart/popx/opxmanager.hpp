// Fake PopART, for tests: the registry of Opxs.
#pragma once

#include <functional>

#include "opx.hpp"

namespace popart {
namespace popx {

class OpxManager {
 public:
  using OpxFactoryFunc = std::function<std::unique_ptr<Opx>(Op*, Devicex*)>;
  static std::map<OperatorIdentifier, OpxFactoryFunc, OperatorIdentifierLess>& entries() {
    static std::map<OperatorIdentifier, OpxFactoryFunc, OperatorIdentifierLess> all;
    return all;
  }
};

template <class OPX>
class OpxCreator {
 public:
  OpxCreator(const std::vector<OperatorIdentifier>& ids) {
    for (const OperatorIdentifier& id : ids)
      OpxManager::entries()[id] = [](Op* op, Devicex* devicex) { return std::make_unique<OPX>(op, devicex); };
  }
};

}  // namespace popx
}  // namespace popart
