// The two macros of codelets/ipu/vertex.h, on the emulated machine. popc never sees this file.
#pragma once
#pragma GCC system_header  // __VA_OPT__ is C++20's; compilers know it in C++17 too, and -Wpedantic warns

#include "machine.h"
#include "registry.h"
#include "work.h"

#define SPARSESNN_WORK(name, count) \
  (::sparsesnn::emulator::worker_bundles() += static_cast<std::uint64_t>(::sparsesnn::emulator::work().name) * (count))

#define SPARSESNN_FIELD(V, f) ::sparsesnn::emulator::describe(#f, &V::f)
#define SPARSESNN_FIELDS(V, ...) SPARSESNN_SCAN(SPARSESNN_EACH(V, __VA_ARGS__))
#define SPARSESNN_EACH(V, f, ...) \
  SPARSESNN_FIELD(V, f) __VA_OPT__(, SPARSESNN_NEXT SPARSESNN_PARENTHESES(V, __VA_ARGS__))
#define SPARSESNN_NEXT() SPARSESNN_EACH
#define SPARSESNN_PARENTHESES ()
// Scans again for each field after the first: 4^3 times.
#define SPARSESNN_SCAN(...) SPARSESNN_SCAN3(SPARSESNN_SCAN3(SPARSESNN_SCAN3(SPARSESNN_SCAN3(__VA_ARGS__))))
#define SPARSESNN_SCAN3(...) SPARSESNN_SCAN2(SPARSESNN_SCAN2(SPARSESNN_SCAN2(SPARSESNN_SCAN2(__VA_ARGS__))))
#define SPARSESNN_SCAN2(...) SPARSESNN_SCAN1(SPARSESNN_SCAN1(SPARSESNN_SCAN1(SPARSESNN_SCAN1(__VA_ARGS__))))
#define SPARSESNN_SCAN1(...) __VA_ARGS__

// Class, then all of its fields.
#define SPARSESNN_VERTEX(V, ...)                         \
  [[maybe_unused]] static const bool V##_is_registered = \
      ::sparsesnn::emulator::register_vertex<V>("sparsesnn::ipu::" #V, {SPARSESNN_FIELDS(V, __VA_ARGS__)});

// One instance of a class template, under the name that Poplar gives it.
#define SPARSESNN_VERTEX_OF(V, T, ...)                                                                          \
  [[maybe_unused]] static const bool V##_of_##T##_is_registered = ::sparsesnn::emulator::register_vertex<V<T>>( \
      "sparsesnn::ipu::" #V "<" #T ">", {SPARSESNN_FIELDS(V<T>, __VA_ARGS__)});
