# Locates the C++ Actor Framework, core component only: Debian's libcaf-dev 0.17.6 ships no CMake package.
#   find_package(CAF 0.17.6 REQUIRED)   ->   target CAF::core
include(FindPackageHandleStandardArgs)
find_package(Threads REQUIRED)

find_path(CAF_INCLUDE_DIR NAMES caf/config.hpp)
find_library(CAF_CORE_LIBRARY NAMES caf_core)
mark_as_advanced(CAF_INCLUDE_DIR CAF_CORE_LIBRARY)

unset(CAF_VERSION)
if(CAF_INCLUDE_DIR)
  # "#define CAF_VERSION 1706" is major * 10000 + minor * 100 + patch.
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" line REGEX "^#define[ \t]+CAF_VERSION[ \t]+[1-9]")
  if(line MATCHES "CAF_VERSION[ \t]+([0-9]+)")
    math(EXPR major "${CMAKE_MATCH_1} / 10000")
    math(EXPR minor "${CMAKE_MATCH_1} / 100 % 100")
    math(EXPR patch "${CMAKE_MATCH_1} % 100")
    set(CAF_VERSION "${major}.${minor}.${patch}")
  endif()
endif()

# CAF_VERSION is required too: an unknown version would pass any version test.
find_package_handle_standard_args(CAF
  REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR CAF_VERSION
  VERSION_VAR CAF_VERSION)

if(CAF_FOUND AND NOT TARGET CAF::core)
  add_library(CAF::core UNKNOWN IMPORTED)
  set_target_properties(CAF::core PROPERTIES
    IMPORTED_LOCATION "${CAF_CORE_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
