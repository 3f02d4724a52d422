# sparsesnn_add_isa_variants(<library> <sources>...) compiles the sources once per instruction set.
#
# Each copy gets its namespace (SPARSESNN_ISA = base, avx2 or avx512) and the bytes of a vector
# (SPARSESNN_VECTOR_BYTES). The library's users see SPARSESNN_HAS_BASE, _AVX2 and _AVX512 if that copy exists.
# SPARSESNN_ISAS lists the instruction sets. The baseline is built if it is listed, or if no other one is.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)

# GCC may clear and copy a few vectors by `rep stos` and `rep movs`, whose start-up takes longer than plain stores take in all.
set(sparsesnn_flags -ffp-contract=off)
set(strategy vector_loop:2048:noalign,libcall:-1:noalign)
check_cxx_compiler_flag("-mmemset-strategy=${strategy}" SPARSESNN_COMPILER_HAS_MEMORY_STRATEGY)
if(SPARSESNN_COMPILER_HAS_MEMORY_STRATEGY)
  list(APPEND sparsesnn_flags -mmemset-strategy=${strategy} -mmemcpy-strategy=${strategy})
endif()
set(sparsesnn_avx2_flags -mavx2 -mbmi -mbmi2 -mpopcnt -mlzcnt)
set(sparsesnn_avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl ${sparsesnn_avx2_flags})

function(sparsesnn_add_isa_variants library)
  set(variants)
  set(vector_bytes_base 16)
  set(vector_bytes_avx2 32)
  set(vector_bytes_avx512 64)

  # The compiler says what it compiles for: CMAKE_SYSTEM_PROCESSOR names the machine, not always the target.
  check_cxx_source_compiles("#if !defined(__x86_64__)\n#error other\n#endif\nint main() {}" SPARSESNN_TARGET_X86_64)
  if(SPARSESNN_TARGET_X86_64)
    set(wide ${SPARSESNN_ISAS})
    list(REMOVE_ITEM wide base)
    foreach(isa IN LISTS wide)
      list(JOIN sparsesnn_${isa}_flags " " flags)
      string(TOUPPER ${isa} name)
      check_cxx_compiler_flag("${flags}" SPARSESNN_COMPILER_HAS_${name})
      if(SPARSESNN_COMPILER_HAS_${name})
        list(APPEND variants ${isa})
      endif()
    endforeach()
  endif()

  if("base" IN_LIST SPARSESNN_ISAS OR NOT variants)
    list(PREPEND variants base)
  endif()

  list(JOIN sparsesnn_flags " " flags)
  set(text "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE} ${flags}")
  foreach(isa IN LISTS variants)
    add_library(${library}_${isa} OBJECT ${ARGN})
    string(TOUPPER ${isa} name)
    target_compile_definitions(${library} PUBLIC SPARSESNN_HAS_${name})
    target_include_directories(${library}_${isa} PRIVATE "${sparsesnn_root}")
    target_compile_options(${library}_${isa} PRIVATE ${sparsesnn_${isa}_flags} ${sparsesnn_flags} -Wall -Wextra)
    target_compile_definitions(${library}_${isa} PRIVATE
      SPARSESNN_ISA=${isa} SPARSESNN_VECTOR_BYTES=${vector_bytes_${isa}})
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${library}_${isa}>)
    list(JOIN sparsesnn_${isa}_flags " " flags)
    if(flags)
      string(APPEND text "; ${isa}: ${flags}")
    endif()
  endforeach()
  string(STRIP "${text}" text)
  set(sparsesnn_flags_text "${text}" PARENT_SCOPE)
  set(sparsesnn_variants "${variants}" PARENT_SCOPE)
endfunction()
