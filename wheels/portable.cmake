# Included by each project() of llama.cpp, as native/mesh/inject.cmake is, for programs that run on other machines:
# ggml and its backends are libraries beside the programs, and everything else is linked into them, so that no C++
# exception crosses a library.
if (PROJECT_NAME STREQUAL "ggml")
    set(BUILD_SHARED_LIBS ON)
endif()

if (NOT MESH_FOLDER)
    include("${MESH_INJECT}")
    set(MESH_PORTABLE "${CMAKE_CURRENT_LIST_DIR}/portable_targets.cmake")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL include "${MESH_PORTABLE}")
endif()
