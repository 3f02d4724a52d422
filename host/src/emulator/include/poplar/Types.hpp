// Part of the emulated machine: the small value types of Poplar's host interface that the IPU program uses.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "HalfFloat.hpp"

namespace poplar {

struct poplar_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class T>
class ArrayRef {
 public:
  ArrayRef() = default;
  ArrayRef(const T* data, std::size_t n) : data_(data), n_(n) {}
  ArrayRef(const std::vector<T>& v) : data_(v.data()), n_(v.size()) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winit-list-lifetime"  // lives as long as the call, as in Poplar
#endif
  ArrayRef(std::initializer_list<T> v) : data_(v.begin()), n_(v.size()) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
  const T* data() const { return data_; }
  std::size_t size() const { return n_; }
  bool empty() const { return n_ == 0; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + n_; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  const T* data_ = nullptr;
  std::size_t n_ = 0;
};

class StringRef {
 public:
  StringRef(const char* text) : text_(text) {}
  StringRef(const std::string& text) : text_(text) {}
  operator std::string() const { return text_; }
  std::string str() const { return text_; }

 private:
  std::string text_;
};

struct SourceLocation {  // for PopART's headers, which name it; unused here
  static SourceLocation Current() { return {}; }
};

class DebugNameAndId {
 public:
  DebugNameAndId(std::string name = "") : name_(std::move(name)) {}
  std::string getPathName() const { return name_; }

 private:
  std::string name_;
};

class DebugContext {
 public:
  DebugContext() = default;
  DebugContext(const DebugNameAndId& name) : name_(name.getPathName()) {}
  DebugContext(const char* name) : name_(name) {}
  DebugContext(std::string name) : name_(std::move(name)) {}
  DebugContext(const DebugContext& parent, const std::string& name)
      : name_(parent.name_.empty() ? name : parent.name_ + "/" + name) {}
  std::string getPathName() const { return name_; }

 private:
  std::string name_;
};

class OptionFlags {
 public:
  OptionFlags() = default;
  OptionFlags(std::initializer_list<std::pair<std::string, std::string>> options) {
    for (const auto& [key, value] : options) set(key, value);
  }
  void set(const std::string& key, const std::string& value) { values_[key] = value; }
  const std::map<std::string, std::string>& values() const { return values_; }  // for the emulator alone

 private:
  std::map<std::string, std::string> values_;
};

class Interval {
 public:
  Interval(std::size_t begin, std::size_t end) : begin_(begin), end_(end) {}
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return end_; }
  std::size_t size() const { return end_ - begin_; }

 private:
  std::size_t begin_, end_;
};

// An element type.
class Type {
 public:
  enum class Id { unsigned_short, unsigned_int, int32, float16, float32 };
  explicit constexpr Type(Id id) : id_(id) {}
  constexpr Id id() const { return id_; }
  constexpr std::size_t bytes() const { return id_ == Id::unsigned_short || id_ == Id::float16 ? 2 : 4; }
  std::string toString() const {
    return id_ == Id::float32        ? "float"
           : id_ == Id::float16      ? "half"
           : id_ == Id::unsigned_int ? "unsigned int"
           : id_ == Id::int32        ? "int"
                                     : "unsigned short";
  }
  constexpr bool operator==(const Type& other) const { return id_ == other.id_; }
  constexpr bool operator!=(const Type& other) const { return id_ != other.id_; }

 private:
  Id id_;
};

inline constexpr Type FLOAT{Type::Id::float32};
inline constexpr Type HALF{Type::Id::float16};
inline constexpr Type UNSIGNED_INT{Type::Id::unsigned_int};
inline constexpr Type INT{Type::Id::int32};
inline constexpr Type UNSIGNED_SHORT{Type::Id::unsigned_short};

template <class T>
struct equivalent_device_type;
template <>
struct equivalent_device_type<float> {
  static constexpr Type value = FLOAT;
};
template <>
struct equivalent_device_type<half> {
  static constexpr Type value = HALF;
};
template <>
struct equivalent_device_type<unsigned> {
  static constexpr Type value = UNSIGNED_INT;
};
template <>
struct equivalent_device_type<unsigned short> {
  static constexpr Type value = UNSIGNED_SHORT;
};

}  // namespace poplar
