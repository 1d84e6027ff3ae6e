# The manual page and the bash completion of a program, printed by the program itself from the definitions of its options:
# build/man/NAME.1 and build/completions/NAME. `kvhive_documents` (part of ALL and of `programs`) makes all of them.
add_custom_target(kvhive_documents ALL)
set(KVHIVE_MAN_DIR "${PROJECT_BINARY_DIR}/man" CACHE INTERNAL "manual pages")
set(KVHIVE_COMPLETIONS_DIR "${PROJECT_BINARY_DIR}/completions" CACHE INTERNAL "bash completions")
file(MAKE_DIRECTORY "${KVHIVE_MAN_DIR}" "${KVHIVE_COMPLETIONS_DIR}")

function(kvhive_documents program)
  set(page "${KVHIVE_MAN_DIR}/${program}.1")
  set(completion "${KVHIVE_COMPLETIONS_DIR}/${program}")
  add_custom_command(OUTPUT "${page}" "${completion}"
    COMMAND ${program} --generate man > "${page}"
    COMMAND ${program} --generate completion > "${completion}"
    DEPENDS ${program} VERBATIM)
  add_custom_target(${program}-documents DEPENDS "${page}" "${completion}")
  add_dependencies(kvhive_documents ${program}-documents)
endfunction()
