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

# What GCC 12 warns of in libstdc++'s strings by mistake (its bugs 105329, 105651). In system headers it does not print that, but it
# forgets that precompiled headers are such.
function(kvhive_quiet_about_libraries target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-restrict)
  endif()
endfunction()
