// Fake PopART, for tests: attributes have ONNX's types, and can be read only as their own.
#pragma once

#include <map>
#include <type_traits>
#include <variant>

#include "error.hpp"
#include "names.hpp"

namespace popart {

class Attributes {
 public:
  using Ints = std::vector<std::int64_t>;
  using Int = std::int64_t;
  using Floats = std::vector<float>;
  using Float = float;
  using Strings = std::vector<std::string>;
  using String = std::string;
  using Value = std::variant<Int, Float, String, Ints, Floats, Strings>;

  std::vector<std::string> getNames() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : values_) names.push_back(name);
    return names;
  }
  bool hasAttribute(const std::string& key) const { return values_.count(key) != 0; }

  template <class T>
  T getAttribute(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw error("no attribute key {}", key);
    if (!std::holds_alternative<T>(found->second)) throw error("attribute {} is of another type", key);
    return std::get<T>(found->second);
  }
  // The real one has defaults for these types only.
  template <class T>
  T getAttribute(const std::string& key, const T& value) const {
    static_assert(
        std::is_same_v<T, Int> || std::is_same_v<T, Ints> || std::is_same_v<T, Float> || std::is_same_v<T, String>,
        "popart::Attributes has no default for this type");
    return hasAttribute(key) ? getAttribute<T>(key) : value;
  }

  void put(const std::string& key, Value value) { values_[key] = std::move(value); }  // only in the fake

 private:
  std::map<std::string, Value> values_;
};

}  // namespace popart
