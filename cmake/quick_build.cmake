# Other projects' headers that most files of a target include, parsed once: a tenth to a quarter of those files' compilation. A file
# includes what it uses all the same: the preset "dev" compiles without.
function(kvhive_precompile target)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  kvhive_quiet_about_libraries(${target})
endfunction()

# The same for targets of equal options: the headers are parsed for the first of them only.
function(kvhive_precompile_as first target)
  target_precompile_headers(${target} REUSE_FROM ${first})
  kvhive_quiet_about_libraries(${target})
endfunction()

# Compiles a target's sources eight together, as one: what they include and instantiate alike, which is most of it where sources are
# small and libraries large, is compiled once. So a name means one thing in all of them: Json is nlohmann::json, the ordered one is
# OrderedJson. Not for base and config, of which libkvhive takes parts: the linker would take the rest along, and the libraries that
# the rest needs. Generated sources, which do not keep to that, are compiled alone; the preset "dev" compiles every source so.
function(kvhive_unite target)
  if(CMAKE_DISABLE_PRECOMPILE_HEADERS)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    string(FIND "${source}" "${CMAKE_BINARY_DIR}/" place)
    if(place EQUAL 0)
      set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

# What GCC 12 warns of in libstdc++'s strings by mistake (its bugs 105329, 105651). In system headers it does not print that, but it
# forgets that precompiled headers are such.
function(kvhive_quiet_about_libraries target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-restrict)
  endif()
endfunction()
