// Checks for the C++ tests: each failure is printed, and main ends with report().
#pragma once

#include <cstdio>
#include <exception>
#include <string>

namespace check {

inline int n_failed = 0;

inline void fail(const char* file, int line, const std::string& what) {
  ++n_failed;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

// The exit status.
inline int report(const char* name) {
  std::printf("%s: %s\n", name, n_failed ? "FAILED" : "ok");
  return n_failed ? 1 : 0;
}

}  // namespace check

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) check::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)

#define CHECK_EQUAL(got, wanted)                                                                         \
  do {                                                                                                   \
    const auto got_value = (got);                                                                        \
    const auto wanted_value = (wanted);                                                                  \
    if (!(got_value == wanted_value))                                                                    \
      check::fail(__FILE__, __LINE__,                                                                    \
                  #got " is " + std::to_string(got_value) + "; wanted " + std::to_string(wanted_value)); \
  } while (false)

// `expression` throws a std::exception whose message contains `part`.
#define CHECK_THROWS(expression, part)                                                                        \
  do {                                                                                                        \
    std::string message;                                                                                      \
    try {                                                                                                     \
      expression;                                                                                             \
      check::fail(__FILE__, __LINE__, "no exception from " #expression);                                      \
    } catch (const std::exception& error) {                                                                   \
      message = error.what();                                                                                 \
      if (message.find(part) == std::string::npos) check::fail(__FILE__, __LINE__, "message is: " + message); \
    }                                                                                                         \
  } while (false)
