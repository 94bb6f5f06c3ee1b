# libggml-mesh.so has a copy of ggml-base that nothing else sees, as in a local build: it loads into any llama-server of
# its release.
get_target_property(BASE_FOLDER ggml-base SOURCE_DIR)
get_target_property(BASE_SOURCES ggml-base SOURCES)
list(FILTER BASE_SOURCES INCLUDE REGEX "\\.(c|cpp)$")
list(TRANSFORM BASE_SOURCES PREPEND "${BASE_FOLDER}/" REGEX "^[^/]")
get_target_property(BASE_DEFINITIONS ggml-base COMPILE_DEFINITIONS)
list(REMOVE_ITEM BASE_DEFINITIONS GGML_SHARED GGML_BUILD)
get_target_property(BASE_INCLUDES ggml-base INCLUDE_DIRECTORIES)
list(TRANSFORM BASE_INCLUDES PREPEND "${BASE_FOLDER}/" REGEX "^[^/$]")

add_library(ggml-base-hidden STATIC EXCLUDE_FROM_ALL ${BASE_SOURCES})
target_compile_definitions(ggml-base-hidden PRIVATE ${BASE_DEFINITIONS} _GNU_SOURCE _XOPEN_SOURCE=600)
target_include_directories(ggml-base-hidden PRIVATE ${BASE_INCLUDES})
target_compile_features(ggml-base-hidden PRIVATE c_std_11 cxx_std_17)
set_target_properties(ggml-base-hidden PROPERTIES POSITION_INDEPENDENT_CODE ON)
set_target_properties(ggml-mesh PROPERTIES LINK_LIBRARIES "ggml-base-hidden;Threads::Threads;${CMAKE_DL_LIBS}")
target_link_options(ggml-mesh PRIVATE "-Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/mesh.map")
# ggml unloads a module that refuses to start. This one has caught an exception by then, and threads that end would call
# into the libc++ that it had inside.
target_link_options(ggml-mesh PRIVATE -Wl,-z,nodelete)
if (TARGET ggml-vulkan) # it throws where there is no driver
    target_link_options(ggml-vulkan PRIVATE -Wl,-z,nodelete)
endif()

target_sources(mesh-server PRIVATE "${CMAKE_CURRENT_LIST_DIR}/graph_plan.cpp")
