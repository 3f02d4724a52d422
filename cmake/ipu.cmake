# The IPU program on the emulated machine, as an object library: codelets register themselves, and from a static library
# a linker would leave out unreferenced objects. C++17, the version of the Poplar SDK's host compiler.
file(GLOB ipu_codelets CONFIGURE_DEPENDS "${sparsesnn_root}/codelets/ipu/*.cpp")
file(GLOB emulator_sources CONFIGURE_DEPENDS "${sparsesnn_src}/emulator/*.cpp")
file(GLOB ipu_sources CONFIGURE_DEPENDS "${sparsesnn_src}/ipu/*.cpp")
list(FILTER ipu_sources EXCLUDE REGEX "_module\\.cpp$")
add_library(sparsesnn_ipu OBJECT EXCLUDE_FROM_ALL ${ipu_codelets} ${emulator_sources} ${ipu_sources})
target_include_directories(sparsesnn_ipu PUBLIC "${sparsesnn_root}" "${sparsesnn_src}/emulator/include")
target_compile_options(sparsesnn_ipu PUBLIC -ffp-contract=off PRIVATE -Wall -Wextra -Wpedantic)
set_target_properties(sparsesnn_ipu PROPERTIES CXX_STANDARD 17)
target_link_libraries(sparsesnn_ipu PUBLIC sparsesnn_engine)

# A misaligned load of 8 bytes traps on a tile but passes here; ./dev builds codelets that abort instead.
option(SPARSESNN_CHECK_CODELETS "Build the emulated IPU's codelets with UndefinedBehaviorSanitizer" OFF)
if(SPARSESNN_CHECK_CODELETS AND NOT SPARSESNN_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(codelet_checks -fsanitize=undefined -fno-sanitize-recover=undefined)
    target_link_options(sparsesnn_ipu PUBLIC -fsanitize=undefined)
  else() # others link the library that prints the message only into programs, not into modules
    set(codelet_checks -fsanitize=undefined -fsanitize-trap=undefined)
  endif()
  set_source_files_properties(${ipu_codelets} PROPERTIES COMPILE_OPTIONS "${codelet_checks}")
  set_source_files_properties("${sparsesnn_src}/emulator/checks.cpp" PROPERTIES COMPILE_DEFINITIONS SPARSESNN_CHECK_CODELETS)
endif()

# The same sources against the SDK, if its enable.sh has been sourced (it sets POPLAR_SDK_ENABLED).
option(SPARSESNN_POPLAR_SDK "Build sparsesnn._ipu_sdk against the Poplar SDK" OFF)
if(DEFINED ENV{POPLAR_SDK_ENABLED})
  set(SPARSESNN_POPLAR_SDK ON)
endif()
if(SPARSESNN_POPLAR_SDK)
  find_program(POPC popc HINTS "$ENV{POPLAR_SDK_ENABLED}/bin" "$ENV{POPLAR_ROOT}/bin" REQUIRED)
  find_library(POPLAR_LIBRARY poplar HINTS "$ENV{POPLAR_SDK_ENABLED}/lib" "$ENV{POPLAR_ROOT}/lib" REQUIRED)
  find_library(POPOPS_LIBRARY popops HINTS "$ENV{POPLAR_SDK_ENABLED}/lib" "$ENV{POPLAR_ROOT}/lib" REQUIRED)
  find_library(GCL_LIBRARY gcl HINTS "$ENV{POPLAR_SDK_ENABLED}/lib" "$ENV{POPLAR_ROOT}/lib" REQUIRED)
  find_library(POPDIST_LIBRARY popdist HINTS "$ENV{POPLAR_SDK_ENABLED}/lib" "$ENV{POPLAR_ROOT}/lib" REQUIRED)
  find_path(POPDIST_INCLUDE popdist/backend.hpp HINTS "$ENV{POPLAR_SDK_ENABLED}/include" "$ENV{POPLAR_ROOT}/include"
    REQUIRED)
  find_path(POPLAR_INCLUDE poplar/Graph.hpp HINTS "$ENV{POPLAR_SDK_ENABLED}/include" "$ENV{POPLAR_ROOT}/include" REQUIRED)
  add_custom_command(OUTPUT "${PROJECT_BINARY_DIR}/ipu.gp"
    COMMAND "${POPC}" -O3 --target=ipu2,ipu21,cpu -I "${sparsesnn_root}" ${ipu_codelets}
      -o "${PROJECT_BINARY_DIR}/ipu.gp"
    DEPENDS ${ipu_codelets} VERBATIM)
  add_custom_target(sparsesnn_codelets ALL DEPENDS "${PROJECT_BINARY_DIR}/ipu.gp")
  install(FILES "${PROJECT_BINARY_DIR}/ipu.gp" DESTINATION sparsesnn/codelets)
endif()

function(sparsesnn_add_ipu_modules)
  nanobind_add_module(_ipu STABLE_ABI NB_STATIC NOMINSIZE "${sparsesnn_src}/ipu/ipu_module.cpp")
  target_compile_definitions(_ipu PRIVATE SPARSESNN_IPU_MODULE=_ipu)
  target_link_libraries(_ipu PRIVATE sparsesnn_ipu)
  install(TARGETS _ipu LIBRARY DESTINATION sparsesnn)
  if(SPARSESNN_POPLAR_SDK)
    nanobind_add_module(_ipu_sdk NB_STATIC NOMINSIZE "${sparsesnn_src}/ipu/ipu_module.cpp" ${ipu_sources})
    target_compile_definitions(_ipu_sdk PRIVATE SPARSESNN_IPU_MODULE=_ipu_sdk SPARSESNN_POPLAR_SDK)
    target_include_directories(_ipu_sdk PRIVATE "${sparsesnn_root}" "${POPLAR_INCLUDE}" "${POPDIST_INCLUDE}")
    target_link_libraries(_ipu_sdk PRIVATE "${POPDIST_LIBRARY}" "${GCL_LIBRARY}" "${POPOPS_LIBRARY}"
      "${POPLAR_LIBRARY}")
    add_dependencies(_ipu_sdk sparsesnn_codelets)
    install(TARGETS _ipu_sdk LIBRARY DESTINATION sparsesnn)
  endif()
endfunction()
