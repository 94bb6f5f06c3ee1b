#include "report.h"

#include "printable.h"

#include <atomic>

#include <fcntl.h>
#include <unistd.h>

namespace mesh {

static constexpr size_t LINE_BYTES = 512; // a pipe takes so many at once or not at all

static std::atomic<int> report_to{ -1 };

void open_report(int descriptor) {
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
    report_to = descriptor;
}

void report(const std::string & line) {
    const std::string text = printable(line).substr(0, LINE_BYTES - 1) + '\n';
    if (report_to >= 0 && write(report_to, text.data(), text.size()) < 0) {
        return; // nobody reads it
    }
}

} // namespace mesh
