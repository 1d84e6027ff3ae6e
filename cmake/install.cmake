# What `make install` copies, and what the Debian packages contain. One component is one package:
#   daemon   kvhive          programs, demo model, manual pages, completion
#   library  libkvhive0      the shared library
#   dev      libkvhive-dev   headers, CMake package, pkg-config file, examples
#   python   python3-kvhive  the Python module
include(CMakePackageConfigHelpers)

add_custom_target(installed DEPENDS programs libkvhive)

# The programs start each other from the folder that they are in.
install(TARGETS kvhive kvhived kvhive-engine kvhive-steward RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT daemon)
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/kvhive/models COMPONENT daemon
  FILES_MATCHING PATTERN "*.json" PATTERN "*.safetensors" PATTERN "passage.txt")
# A unit names its programs without a folder: systemd looks into /usr/local/bin and /usr/bin.
install(FILES tools/service/kvhived.service DESTINATION lib/systemd/system COMPONENT daemon)
install(FILES tools/service/kvhived.toml tools/service/grafana-dashboard.json tools/service/prometheus-alerts.yml
  DESTINATION ${CMAKE_INSTALL_DATADIR}/kvhive COMPONENT daemon)
install(DIRECTORY "${PROJECT_BINARY_DIR}/man/" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT daemon
  OPTIONAL FILES_MATCHING PATTERN "*.1")
install(DIRECTORY "${PROJECT_BINARY_DIR}/completions/" DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  COMPONENT daemon OPTIONAL)

install(TARGETS libkvhive EXPORT kvhive
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT dev)
install(DIRECTORY client/include/kvhive DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/kvhive)
install(EXPORT kvhive NAMESPACE kvhive:: FILE kvhiveConfig.cmake DESTINATION ${package_directory} COMPONENT dev)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvhiveConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kvhiveConfigVersion.cmake" DESTINATION ${package_directory} COMPONENT dev)
# The file finds its prefix from its own place, so that an installed tree may be moved.
file(RELATIVE_PATH prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/kvhive.pc.in "${PROJECT_BINARY_DIR}/kvhive.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/kvhive.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev USE_SOURCE_PERMISSIONS)

if(TARGET kvhive_python)
  add_dependencies(installed kvhive_python)
  # Debian's Python looks for its packages' modules under /usr/lib/python3 and for an administrator's
  # under /usr/local/lib/python3.x.
  set(python_files "${PROJECT_SOURCE_DIR}/client/python/kvhive.pyi")
  foreach(place "python;python${KVHIVE_PYTHON_VERSION};" "python-package;python3;EXCLUDE_FROM_ALL")
    list(GET place 0 component)
    list(GET place 1 version_folder)
    list(GET place 2 exclusion)
    set(destination "lib/${version_folder}/dist-packages")
    install(TARGETS kvhive_python LIBRARY DESTINATION ${destination} COMPONENT ${component} ${exclusion})
    install(FILES ${python_files} DESTINATION ${destination} COMPONENT ${component} ${exclusion})
  endforeach()
endif()
