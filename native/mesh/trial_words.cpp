#include "trial_words.h"

#include <algorithm>
#include <cctype>

namespace mesh {

static constexpr int64_t MOST = 1 << 18; // of any number

static std::string lower(std::string text) {
    for (char & letter : text) {
        letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
    return text;
}

// In whatever case
static bool parse_type(const std::string & text, ggml_type & type) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const auto known = static_cast<ggml_type>(i);
        if (ggml_blck_size(known) > 0 && can_be_filled(known) && lower(ggml_type_name(known)) == lower(text)) {
            type = known;
            return true;
        }
    }
    return false;
}

bool parse_number(const std::string & text, int64_t & number) {
    if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) {
        return false;
    }
    number = std::stoll(text);
    return number >= 1 && number <= MOST;
}

std::vector<std::string> split_word(const std::string & word, char at) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= word.size();) {
        const size_t end = std::min(word.find(at, begin), word.size());
        parts.push_back(word.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

std::string join_word(const std::vector<std::string> & parts) {
    std::string word = parts[0];
    for (size_t i = 1; i < parts.size(); i++) {
        word += ":" + parts[i];
    }
    return word;
}

const trial_operation * parse_trial(const std::string & word, trial_numbers & asked) {
    const std::vector<std::string> parts = split_word(word);
    const trial_operation * known = find_trial_operation(parts[0]);
    if (known == nullptr || parts.size() != 1 + known->types + known->numbers) {
        return nullptr;
    }
    asked.types.resize(known->types);
    asked.n.resize(known->numbers);
    for (size_t i = 0; i < known->types; i++) {
        if (!parse_type(parts[1 + i], asked.types[i])) {
            return nullptr;
        }
    }
    for (size_t i = 0; i < known->numbers; i++) {
        if (!parse_number(parts[1 + known->types + i], asked.n[i])) {
            return nullptr;
        }
    }
    return known->in_rows && asked.n[0] % ggml_blck_size(asked.types[0]) != 0 ? nullptr : known;
}

} // namespace mesh
