// llama.cpp's loader maps a model's file and has the kernel read all of it at once. A head computes with a part of
// that, and its workers read the rest from their own disks. With preload.cpp these two wishes of the loader come here:
// they are left out, and what the head itself needs is asked for when that is known. 64-bit Linux; elsewhere nothing
// happens.
#pragma once

#include "weights_index.h"

#include <cstddef>
#include <sys/types.h>

namespace mesh {

// From now on nothing of these files is read because they are mapped. The index stays.
void keep_unread(const weights_index & index);

// A worker has this one
void note_remote(const weights_tensor & tensor);

// All that are remote are known: has the kernel read what is still mapped of the others, once
void read_the_rest();

#if defined(__linux__) && defined(__LP64__)
// As the functions of libc
void * map_file(void * address, size_t size, int protection, int flags, int descriptor, off_t offset);
int advise_memory(void * address, size_t size, int advice);
#endif

} // namespace mesh
