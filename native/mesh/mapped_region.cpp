#include "mapped_region.h"

#include <cstring>

#ifdef __APPLE__

#include <libproc.h>
#include <sys/proc_info.h>
#include <unistd.h>

namespace mesh {

bool find_mapped(uint64_t address, mapped_region & found) {
    proc_regionwithpathinfo region = {};
    // of the region with this address, or of the next one
    const int got = proc_pidinfo(getpid(), PROC_PIDREGIONPATHINFO, address, &region, sizeof region);
    const vnode_info_path & file = region.prp_vip;
    found.first = region.prp_prinfo.pri_address;
    found.end = found.first + region.prp_prinfo.pri_size;
    found.offset = region.prp_prinfo.pri_offset;
    found.inode = file.vip_vi.vi_stat.vst_ino;
    found.path.assign(file.vip_path, strnlen(file.vip_path, sizeof file.vip_path));
    return got == static_cast<int>(sizeof region) && found.first <= address && address < found.end &&
           found.inode != 0 && !found.path.empty();
}

} // namespace mesh

#else

#include <cinttypes>
#include <cstdio>

namespace mesh {

// A line of /proc/self/maps: 7f00-7f10 r--s 00001000 fe:01 123456    /path of/the file
static bool parse_line(const char * line, mapped_region & found) {
    int path = 0;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64 " %n", &found.first, &found.end,
            &found.offset, &found.inode, &path) != 4 ||
        found.inode == 0 || path == 0) {
        return false;
    }
    found.path.assign(line + path, std::strcspn(line + path, "\n"));
    return true;
}

bool find_mapped(uint64_t address, mapped_region & found) {
    std::FILE * maps = std::fopen("/proc/self/maps", "re");
    if (maps == nullptr) {
        return false;
    }
    char line[8192];
    bool is_there = false;
    while (!is_there && std::fgets(line, sizeof line, maps) != nullptr) {
        is_there = parse_line(line, found) && found.first <= address && address < found.end;
    }
    std::fclose(maps);
    return is_there;
}

} // namespace mesh

#endif
