# All code is instrumented: a race between instrumented and plain code would go unnoticed.
if(SPARSESNN_SANITIZE)
  if(NOT SPARSESNN_SANITIZE MATCHES "^(address,undefined|address|undefined|thread)$")
    message(FATAL_ERROR
      "SPARSESNN_SANITIZE is '${SPARSESNN_SANITIZE}'; allowed: address,undefined or thread; leave it empty for none")
  endif()
  set(sanitize_flags "-fsanitize=${SPARSESNN_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer
    -g1) # functions and lines, for reports; variables would take two thirds more time to compile
  # Kernels with addresses and undefined behavior checked compile in 40 % of the time of -O1, and the tests run in seconds.
  set(CMAKE_CXX_FLAGS_RELEASE "-O0")
  if(SPARSESNN_SANITIZE STREQUAL "thread")
    set(CMAKE_CXX_FLAGS_RELEASE "-O1") # its tests would take minutes
  endif()
  add_compile_options(${sanitize_flags})
  add_link_options(${sanitize_flags})
endif()
