// The devices of this machine, a line for each.
#pragma once

#include <string>
#include <vector>

namespace mesh {

// `device NAME KIND ID TOTAL FREE DESCRIPTION`, where the id of the hardware is the same for all devices that are one
// card, and `-` where it is not known
std::vector<std::string> list_devices();

} // namespace mesh
