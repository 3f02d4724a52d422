// Fake PopART, for tests: its exception, whose first argument is a format with {} for each further argument.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace popart {

class error : public std::runtime_error {
 public:
  template <class... Args>
  explicit error(const std::string& form, const Args&... args) : std::runtime_error(filled(form, args...)) {}

 private:
  static std::string filled(const std::string& form) {
    if (form.find('{') != std::string::npos) throw std::logic_error("popart::error: no argument for a {} of: " + form);
    return form;
  }
  template <class First, class... Others>
  static std::string filled(const std::string& form, const First& first, const Others&... others) {
    const std::size_t at = form.find("{}");
    if (at == std::string::npos) throw std::logic_error("popart::error: more arguments than {} in: " + form);
    std::ostringstream text;
    text << form.substr(0, at) << first;
    const std::string rest = form.substr(at + 2);
    // arguments may contain braces
    if constexpr (sizeof...(others) == 0)
      return text.str() + (rest.find('{') == std::string::npos ? rest : filled(rest));
    else
      return text.str() + filled(rest, others...);
  }
};

}  // namespace popart
