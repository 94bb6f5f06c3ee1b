// Neighbours that the parent process hands over while the server already runs. At a stream socket comes for each of
// them a message of 8 bytes, little endian: u32 kind, u32 number.
//
//     1: neighbour `number`; the descriptor of its connection comes with these bytes (SCM_RIGHTS)
//     2: there are no more; number 0. The end of the socket says the same
//     3: as 1, and the other end is in the hands of that neighbour itself: what passes is reported
//     4: as 3, on another machine: the keys follow, 32 bytes for what is sent and 32 for what comes (sealing.h)
#pragma once

#include "neighbours.h"

#include <functional>

namespace mesh {

class arrivals {
public:
    // Takes over the socket, and tells `others` who comes until they are complete. `wrong` is called, by a thread of
    // its own, if the parent says anything else; nobody is told that they are complete then
    arrivals(int socket, neighbours & others, std::function<void(const std::string &)> wrong);
    ~arrivals();
    arrivals(const arrivals &) = delete;
    arrivals & operator=(const arrivals &) = delete;

private:
    void read();
    bool read_one(); // false: there are no more

    const int socket;
    neighbours & others;
    const std::function<void(const std::string &)> wrong;
    std::atomic<bool> ended{ false };
    std::thread reading;
};

} // namespace mesh
