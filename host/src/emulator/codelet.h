// The two macros of codelets/ipu/vertex.h, on the emulated machine. popc never sees this file.
#pragma once

#include "machine.h"
#include "registry.h"
#include "work.h"

#define SPARSESNN_WORK(name, count) \
  (::sparsesnn::emulator::worker_bundles() += static_cast<std::uint64_t>(::sparsesnn::emulator::work().name) * (count))

#define SPARSESNN_FIELD(V, f) ::sparsesnn::emulator::describe(#f, &V::f)
#define SPARSESNN_FIELDS_1(V, f) SPARSESNN_FIELD(V, f)
#define SPARSESNN_FIELDS_2(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_1(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_3(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_2(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_4(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_3(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_5(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_4(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_6(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_5(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_7(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_6(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_8(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_7(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_9(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_8(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_10(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_9(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_11(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_10(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_12(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_11(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_13(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_12(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_14(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_13(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_15(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_14(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_16(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_15(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_17(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_16(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_18(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_17(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_19(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_18(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_20(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_19(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_21(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_20(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_22(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_21(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_23(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_22(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_24(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_23(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_25(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_24(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_26(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_25(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_27(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_26(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_28(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_27(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_29(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_28(V, __VA_ARGS__)
#define SPARSESNN_FIELDS_30(V, f, ...) SPARSESNN_FIELD(V, f), SPARSESNN_FIELDS_29(V, __VA_ARGS__)
#define SPARSESNN_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, \
                       _22, _23, _24, _25, _26, _27, _28, _29, _30, chosen, ...)                                       \
  chosen
#define SPARSESNN_FIELDS(V, ...)                                                                                      \
  SPARSESNN_PICK(__VA_ARGS__, SPARSESNN_FIELDS_30, SPARSESNN_FIELDS_29, SPARSESNN_FIELDS_28, SPARSESNN_FIELDS_27,     \
                 SPARSESNN_FIELDS_26, SPARSESNN_FIELDS_25, SPARSESNN_FIELDS_24, SPARSESNN_FIELDS_23,                  \
                 SPARSESNN_FIELDS_22, SPARSESNN_FIELDS_21, SPARSESNN_FIELDS_20, SPARSESNN_FIELDS_19,                  \
                 SPARSESNN_FIELDS_18, SPARSESNN_FIELDS_17, SPARSESNN_FIELDS_16, SPARSESNN_FIELDS_15,                  \
                 SPARSESNN_FIELDS_14, SPARSESNN_FIELDS_13, SPARSESNN_FIELDS_12, SPARSESNN_FIELDS_11,                  \
                 SPARSESNN_FIELDS_10, SPARSESNN_FIELDS_9, SPARSESNN_FIELDS_8, SPARSESNN_FIELDS_7, SPARSESNN_FIELDS_6, \
                 SPARSESNN_FIELDS_5, SPARSESNN_FIELDS_4, SPARSESNN_FIELDS_3, SPARSESNN_FIELDS_2,                      \
                 SPARSESNN_FIELDS_1, )(V, __VA_ARGS__)

// Class, then all of its fields.
#define SPARSESNN_VERTEX(V, ...)                         \
  [[maybe_unused]] static const bool V##_is_registered = \
      ::sparsesnn::emulator::register_vertex<V>("sparsesnn::ipu::" #V, {SPARSESNN_FIELDS(V, __VA_ARGS__)});

// One instance of a class template, under the name that Poplar gives it.
#define SPARSESNN_VERTEX_OF(V, T, ...)                                                                          \
  [[maybe_unused]] static const bool V##_of_##T##_is_registered = ::sparsesnn::emulator::register_vertex<V<T>>( \
      "sparsesnn::ipu::" #V "<" #T ">", {SPARSESNN_FIELDS(V<T>, __VA_ARGS__)});
