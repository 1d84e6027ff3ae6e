# The Debian packages: `make package` writes them into build/packages. Dependencies on other
# packages' libraries come from dpkg-shlibdeps.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "kvhive maintainers <kvhive@localhost>")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL daemon library dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/lib")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME kvhive)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DAEMON_PACKAGE_RECOMMENDS "python3-jinja2, python3-seccomp")  # kvhive serve: chat
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/cmake/postinst;${PROJECT_SOURCE_DIR}/cmake/postrm")
set(CPACK_DEBIAN_DAEMON_DESCRIPTION "One KV cache per host: daemon, engines and command line\n\
kvhive runs several LLM engine processes over one pool of KV blocks in shared memory.\n\
What one engine has computed, every other reads in place. A small demo model is included.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libkvhive${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "Client library of kvhive, one KV cache per host\n\
A program that links it connects to kvhived, submits prompts and streams tokens.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libkvhive-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libkvhive${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEV_DESCRIPTION "Client library of kvhive: headers for C and C++, examples\n\
With a CMake package (find_package(kvhive)) and a pkg-config file.")

if(TARGET kvhive_python)
  list(APPEND CPACK_COMPONENTS_ALL python-package)
  string(REPLACE "3." "" python_minor "${KVHIVE_PYTHON_VERSION}")
  math(EXPR next_python_minor "${python_minor} + 1")
  set(CPACK_DEBIAN_PYTHON-PACKAGE_PACKAGE_NAME python3-kvhive)
  set(CPACK_DEBIAN_PYTHON-PACKAGE_PACKAGE_SECTION python)
  set(CPACK_DEBIAN_PYTHON-PACKAGE_PACKAGE_DEPENDS
    "libkvhive${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION}), python3 (>= ${KVHIVE_PYTHON_VERSION}), python3 (<< 3.${next_python_minor})")
  set(CPACK_DEBIAN_PYTHON-PACKAGE_DESCRIPTION "Python client of kvhive, one KV cache per host\n\
The module kvhive connects to kvhived and streams completions.")
endif()
include(CPack)
