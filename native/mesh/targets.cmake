# mesh-server, libggml-mesh.so, and for tests mesh-tests and mesh-server-asleep. Nothing is built unless it is asked for
# by name.
set(MESH "${CMAKE_CURRENT_LIST_DIR}")
set(GGML "${CMAKE_SOURCE_DIR}/ggml")

include("${MESH}/sources.cmake")
file(GLOB TESTS CONFIGURE_DEPENDS RELATIVE "${MESH}" "${MESH}/tests/*.cpp")
list(REMOVE_ITEM TESTS tests/asleep.cpp)
foreach (list BOTH CLIENT SERVER TESTS)
    list(TRANSFORM ${list} PREPEND "${MESH}/")
endforeach()

function(mesh_target name)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
        CXX_VISIBILITY_PRESET hidden RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin"
        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
    target_compile_options(${name} PRIVATE -Wall -Wextra -Werror)
    # upstream's headers are not held to our warnings
    target_include_directories(${name} SYSTEM PRIVATE "${GGML}/src" "${GGML}/include")
    target_include_directories(${name} PRIVATE "${MESH}")
endfunction()

find_package(Threads REQUIRED)

# The module has a copy of ggml-base of its own where that is a static library: a static llama-server shows it none.
set_target_properties(ggml-base PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(ggml-mesh MODULE ${BOTH} ${CLIENT} "${MESH}/module.cpp" "${MESH}/preload.cpp")
mesh_target(ggml-mesh)
target_link_libraries(ggml-mesh PRIVATE ggml-base Threads::Threads ${CMAKE_DL_LIBS})
if (NOT APPLE)
    target_link_options(ggml-mesh PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
endif()

add_executable(mesh-server ${BOTH} ${SERVER} "${MESH}/server_main.cpp")
mesh_target(mesh-server)
target_link_libraries(mesh-server PRIVATE ggml Threads::Threads ${CMAKE_DL_LIBS})

if (TESTS)
    # computes nothing, and takes the time: for `python -m tests.native.asleep`
    add_executable(mesh-server-asleep ${BOTH} ${SERVER} "${MESH}/server_main.cpp" "${MESH}/tests/asleep.cpp")
    mesh_target(mesh-server-asleep)
    target_link_libraries(mesh-server-asleep PRIVATE ggml Threads::Threads ${CMAKE_DL_LIBS})
    target_link_options(mesh-server-asleep PRIVATE -Wl,--wrap=ggml_backend_graph_compute_async)

    set(MESH_SANITIZE "address,undefined" CACHE STRING "for -fsanitize= of mesh-tests, empty: none")
    add_executable(mesh-tests ${BOTH} ${CLIENT} ${SERVER} ${TESTS})
    mesh_target(mesh-tests)
    target_link_libraries(mesh-tests PRIVATE ggml Threads::Threads ${CMAKE_DL_LIBS})
    target_compile_options(mesh-tests PRIVATE -O1 -g -UNDEBUG)
    if (MESH_SANITIZE)
        target_compile_options(mesh-tests PRIVATE -fsanitize=${MESH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
        target_link_options(mesh-tests PRIVATE -fsanitize=${MESH_SANITIZE})
    endif()
endif()
