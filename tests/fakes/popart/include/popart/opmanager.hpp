// Fake PopART, for tests: the registry of ops, which static OpCreators fill when a library is loaded.
#pragma once

#include <functional>

#include "attributes.hpp"
#include "op.hpp"

namespace popart {

class OpDefinition {
 public:
  struct Input {
    std::string name;
    std::vector<DataType> supportedTensors;
    Input(std::string n, std::vector<DataType> t) : name(std::move(n)), supportedTensors(std::move(t)) {}
  };
  using Output = Input;
  struct Attribute {
    std::string supportedValuesRegex;
    Attribute(std::string regex) : supportedValuesRegex(std::move(regex)) {}
  };
  using Inputs = std::vector<Input>;
  using Outputs = std::vector<Output>;
  using Attributes = std::map<std::string, Attribute>;

  OpDefinition() = default;
  OpDefinition(Inputs i, Outputs o, Attributes a)
      : inputs(std::move(i)), outputs(std::move(o)), attributes(std::move(a)) {}
  Inputs inputs;
  Outputs outputs;
  Attributes attributes;
};

using OpDefinitions = std::map<OperatorIdentifier, OpDefinition, OperatorIdentifierLess>;

class OpCreatorInfo {
 public:
  const OperatorIdentifier& opid;
  const Op::Settings& settings;
  const Attributes& attributes;
};

class OpManager {
 public:
  using OpFactoryFunc = std::function<std::unique_ptr<Op>(const OpCreatorInfo&)>;
  struct Entry {
    OpDefinition definition;
    OpFactoryFunc make;
  };
  static std::map<OperatorIdentifier, Entry, OperatorIdentifierLess>& entries() {
    static std::map<OperatorIdentifier, Entry, OperatorIdentifierLess> all;
    return all;
  }
};

template <class OP>
class OpCreator {
 public:
  OpCreator(const OpDefinitions& definitions, OpManager::OpFactoryFunc make, bool is_public = true) {
    (void)is_public;
    for (const auto& [id, definition] : definitions) OpManager::entries()[id] = {definition, make};
  }
};

}  // namespace popart
