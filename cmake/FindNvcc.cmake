# Locates a CUDA Toolkit to build for GPUs with. Not there, or not wanted: Nvcc_FOUND is false and everything but GPUs works.
#   KVHIVE_CUDA   AUTO (if found), ON, OFF
#   NVCC          the compiler, NVCC_ROOT its toolkit; target Nvcc::runtime: headers, the static runtime
set(KVHIVE_CUDA AUTO CACHE STRING "Build for GPUs, with nvcc: AUTO (if found), ON, OFF")
# Sanitizer builds check the CUDA sources on the emulator (kernels/simt), and engines on a fake device.
if(NOT KVHIVE_CUDA STREQUAL OFF AND NOT KVHIVE_SANITIZE AND NOT KVHIVE_FUZZ)
  find_program(NVCC nvcc PATHS /usr/local/cuda/bin)
endif()
if(KVHIVE_CUDA STREQUAL ON AND NOT NVCC)
  message(FATAL_ERROR "KVHIVE_CUDA=ON, but there is no nvcc in PATH or /usr/local/cuda/bin")
endif()
if(NVCC)
  file(REAL_PATH "${NVCC}" real_nvcc)
  cmake_path(GET real_nvcc PARENT_PATH NVCC_ROOT)
  cmake_path(GET NVCC_ROOT PARENT_PATH NVCC_ROOT)
  find_path(NVCC_INCLUDE_DIR cuda_runtime.h PATHS "${NVCC_ROOT}/include" "${NVCC_ROOT}/targets/x86_64-linux/include")
  find_library(NVCC_RUNTIME cudart_static PATHS "${NVCC_ROOT}/lib64" "${NVCC_ROOT}/lib" "${NVCC_ROOT}/targets/x86_64-linux/lib")
  mark_as_advanced(NVCC_INCLUDE_DIR NVCC_RUNTIME)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nvcc REQUIRED_VARS NVCC NVCC_INCLUDE_DIR NVCC_RUNTIME)

if(Nvcc_FOUND AND NOT TARGET Nvcc::runtime)
  add_library(Nvcc::runtime STATIC IMPORTED)
  set_target_properties(Nvcc::runtime PROPERTIES
    IMPORTED_LOCATION "${NVCC_RUNTIME}"
    INTERFACE_INCLUDE_DIRECTORIES "${NVCC_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};rt")
endif()
