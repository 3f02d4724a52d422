// Fake PopART, for tests: the appended attributes are the key of PopART's outlining and of its cache of executables.
#pragma once

#include <map>

#include "names.hpp"

namespace popart {

class OpSerialiserBase {
 public:
  void appendAttribute(const std::string& key, float value) { put(key, value); }
  void appendAttribute(const std::string& key, std::int64_t value) { put(key, value); }
  void appendAttribute(const std::string& key, const std::string& value) { texts_[key] = value; }
  void appendAttribute(const std::string& key, const std::vector<float>& values) { put_all(key, values); }
  void appendAttribute(const std::string& key, const std::vector<std::int64_t>& values) { put_all(key, values); }

  const std::map<std::string, std::string>& texts() const { return texts_; }  // only in the fake

 private:
  template <class T>
  void put(const std::string& key, T value) {
    texts_[key] = std::to_string(value);
  }
  template <class T>
  void put_all(const std::string& key, const std::vector<T>& values) {
    std::string& text = texts_[key];
    text = "";
    for (const T value : values) text += std::to_string(value) + " ";
  }
  std::map<std::string, std::string> texts_;
};

}  // namespace popart
