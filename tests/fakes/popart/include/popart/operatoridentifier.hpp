// Fake PopART, for tests: domain, type and version of an op.
#pragma once

#include <ostream>
#include <tuple>

#include "names.hpp"

namespace popart {

struct OperatorIdentifier {
  OperatorIdentifier(const OpDomain& domain, const OpType& type, OpVersion version)
      : domain(domain), type(type), version(version) {}
  OpDomain domain;
  OpType type;
  OpVersion version;
  bool operator==(const OperatorIdentifier& other) const {
    return domain == other.domain && type == other.type && version == other.version;
  }
};

struct OperatorIdentifierLess {
  bool operator()(const OperatorIdentifier& a, const OperatorIdentifier& b) const {
    return std::tie(a.domain, a.type, a.version) < std::tie(b.domain, b.type, b.version);
  }
};

inline std::ostream& operator<<(std::ostream& out, const OperatorIdentifier& id) {
  return out << id.domain << "::" << id.type << ":" << id.version;
}

}  // namespace popart
