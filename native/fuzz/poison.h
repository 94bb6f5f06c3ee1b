// Memory that nobody may touch for a while. Without ASan: nothing.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void) (start), (void) (size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void) (start), (void) (size))
#endif
