# cmake -DCMAKE_PROJECT_INCLUDE=.../native/mesh/inject.cmake adds our targets to an untouched llama.cpp, once its own
# are there. Every project() of the tree includes this file; the first one counts.
if (NOT MESH_FOLDER)
    set(MESH_FOLDER "${CMAKE_CURRENT_LIST_DIR}")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL include "${MESH_FOLDER}/targets.cmake")
endif()
