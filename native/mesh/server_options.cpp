#include "server_options.h"

#include "descriptor.h"

#include <cstdlib>

namespace mesh {

const char USAGE[] = R"(usage: mesh-server --fd N [options]
       mesh-server --describe [MODULE]
       mesh-server --seals
       mesh-server --list-devices
       mesh-server --try-device NAME --try OPERATION[,OPERATION] [--try-tolerance F]
       mesh-server --time-device NAME [--threads N] --time LAYERS=OPERATION[,OPERATION] [--time …]

  --fd N             serve the head at the other end of this inherited socket
  --device NAME      lend this device; may be given several times (default: the CPU)
  --threads N        of a CPU (default: 1)
  --memory B[,B]     bytes that the head may hold on each device (default: what it has)
  --neighbour K:N    worker K of the head is at the other end of this socket: push to it, and take from it
  --neighbours-fd N  more neighbours are handed over there; the head is welcomed once all of them are there
  --weights-fd N     read the weights index there; its `file` lines name further descriptors
  --report-fd N      lines for the parent process: `free DEVICE BYTES` at the start, `loaded TENSORS BYTES` from files, and
                     `failed WHY` before it exits
  --describe         print what this program, or a libggml-mesh.so, is: one line of JSON
  --seals            print `{"seals": true}` if it can encrypt for neighbours on other machines with this machine's
                     libcrypto, else false
  --list-devices     print a line for each device: name, kind, id of the hardware or -, total and free bytes, description
  --try-device NAME  compute such operations as mul_mat:q4_0:576 on this device and the CPU, print what came of each, and
                     exit with 2 if one was wrong or failed, with 1 if there is no such device
  --time-device NAME print how long this device takes for a layer of each --time; one that it cannot compute has no line
  --time N=OPS       N layers with weights of their own, such as 30=mul_mat:q4_1:576:1536,rms_norm:576
  --try-tolerance F  multiply the largest error that is taken (default: 1)
)";

static uint64_t number(const std::string & name, const std::string & text, uint64_t least, uint64_t most) {
    char * end = nullptr;
    const uint64_t value = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || text[0] < '0' || text[0] > '9' || *end != '\0' || value < least || value > most) {
        throw wrong_option(name + " takes a number from " + std::to_string(least) + " to " + std::to_string(most) +
                           ", not `" + text + "`");
    }
    return value;
}

static neighbour_socket parse_neighbour(const std::string & text, const std::vector<neighbour_socket> & before) {
    const size_t colon = text.find(':');
    neighbour_socket found = {};
    if (colon == std::string::npos || !parse_descriptor(text.substr(colon + 1), found.socket)) {
        throw wrong_option("--neighbour takes NUMBER:DESCRIPTOR, not `" + text + "`");
    }
    found.number = static_cast<uint32_t>(number("--neighbour", text.substr(0, colon), 0, NEIGHBOURS - 1));
    for (const auto & one : before) {
        if (one.number == found.number) {
            throw wrong_option("neighbour " + std::to_string(found.number) + " is there twice");
        }
    }
    return found;
}

// Empty words as well, so that nothing that is missing goes unseen.
static std::vector<std::string> split(const std::string & text) {
    std::vector<std::string> words;
    size_t begin = 0;
    for (size_t end = text.find(','); end != std::string::npos; end = text.find(',', begin)) {
        words.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    words.push_back(text.substr(begin));
    return words;
}

static double factor(const std::string & name, const std::string & text) {
    char * end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(value >= 0)) {
        throw wrong_option(name + " takes a factor, not `" + text + "`");
    }
    return value;
}

// Of a trial. false: it is another option
static bool take_trial(options & found, const std::string & name, const std::string & value) {
    if (name == "--try-device") {
        found.tried = value;
    } else if (name == "--try") {
        found.operations = split(value);
    } else if (name == "--try-tolerance") {
        found.tolerance = factor(name, value);
    } else if (name == "--time-device") {
        found.timed = value;
    } else if (name == "--time") {
        try {
            found.kinds.push_back(parse_timed(value));
        } catch (const std::invalid_argument & error) {
            throw wrong_option("--time: " + std::string(error.what()));
        }
    } else {
        return false;
    }
    return true;
}

options parse_options(const std::vector<std::string> & words) {
    options found;
    for (size_t i = 0; i < words.size(); i++) {
        const std::string & name = words[i];
        if (name == "--describe") {
            found.describe = true;
            found.module = i + 1 < words.size() ? words[++i] : "";
            continue;
        }
        if (name == "--list-devices" || name == "--seals") {
            (name == "--seals" ? found.seals : found.list) = true;
            continue;
        }
        if (i + 1 == words.size()) {
            throw wrong_option("`" + name + "` is no option, or lacks its value");
        }
        const std::string & value = words[++i];
        if (int * descriptor = found.descriptor(name)) {
            if (!parse_descriptor(value, *descriptor)) {
                throw wrong_option(name + ": `" + value + "` is no inherited descriptor");
            }
        } else if (name == "--neighbour") {
            found.neighbours.push_back(parse_neighbour(value, found.neighbours));
        } else if (name == "--device") {
            found.devices.push_back(value);
        } else if (name == "--threads") {
            found.threads = static_cast<int>(number(name, value, 1, 1024));
        } else if (name == "--memory") {
            for (const auto & part : split(value)) {
                found.memory.push_back(number(name, part, 1, 1ull << 47));
            }
        } else if (!take_trial(found, name, value)) {
            throw wrong_option("there is no option `" + name + "`");
        }
    }
    if (!found.describe && !found.seals && !found.list && found.tried.empty() && found.timed.empty() &&
        found.socket < 0) {
        throw wrong_option("--fd is missing");
    }
    return found;
}

} // namespace mesh
