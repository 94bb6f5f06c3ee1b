// Neighbours 1 and 2, which push back whatever they get, or what `change` makes of a summand: a take of nothing is
// refused, not waited for
#pragma once

#include "neighbours.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

class echo : public mesh::exchange {
public:
    std::vector<uint32_t> numbers() const override { return { 1, 2 }; }
    void push(uint32_t number, uint64_t token, mesh::blob data) override;
    void push_summand(uint32_t number, uint64_t token, const mesh::blob & data) override;
    mesh::blob take_summand(uint32_t number, uint64_t token) override;
    mesh::blob take(uint32_t number, uint64_t token, uint32_t size) override;

    std::function<void(mesh::blob &)> change; // of one summand, the next

private:
    struct piece {
        uint64_t token;
        mesh::blob data;
    };
    std::deque<piece> pieces[2];
};
