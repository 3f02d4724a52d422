#include "registry.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace sparsesnn::emulator {
namespace {

std::map<std::string, VertexClass>& classes() {
  static std::map<std::string, VertexClass> all;
  return all;
}

// Between fields, ordered by offset, there must be only padding: a field in a gap was not registered.
void check_filled(const VertexClass& c) {
  std::vector<Field> fields = c.fields;
  std::sort(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.offset < b.offset; });
  std::size_t end = 0;
  for (const Field& f : fields) {
    const std::size_t unit = std::min<std::size_t>(f.size, sizeof(void*));
    if (f.offset != (end + unit - 1) / unit * unit)
      throw std::logic_error(c.name + ": a field before '" + f.name + "' is not listed in SPARSESNN_VERTEX");
    end = f.offset + f.size;
  }
  if ((end + c.align - 1) / c.align * c.align != c.size)
    throw std::logic_error(c.name + ": its last fields are not listed in SPARSESNN_VERTEX");
}

}  // namespace

const VertexClass* find_class(const std::string& name) {
  const auto found = classes().find(name);
  return found == classes().end() ? nullptr : &found->second;
}

std::vector<std::string> class_names() {
  std::vector<std::string> names;
  for (const auto& [name, c] : classes()) names.push_back(name);
  return names;
}

bool add_class(VertexClass vertex_class) {
  check_filled(vertex_class);
  const std::string name = vertex_class.name;
  if (!classes().emplace(name, std::move(vertex_class)).second) throw std::logic_error(name + " is registered twice");
  return true;
}

}  // namespace sparsesnn::emulator
