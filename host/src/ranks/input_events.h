// Spikes of the input, which every rank has whole, sorted for all ranks of a host by those of them that would wait.
#pragma once

#include <cstdint>
#include <vector>

#include "host/src/cpu/events.h"
#include "shard_lists.h"

namespace sparsesnn {

// This rank's part of the chunks. Of each what it is of, [4]; starts [2·M + 1]; the rows of the events.
Array<std::int32_t> sort_input(const SenderInput& from, const std::vector<Chunk>& chunks, int n_samples, Part part);

// By chunk, from the parts of all ranks, which stay where they are; empty where they do not cover all chunks. Throws
// InputError where a part has events that no chunk can have.
std::vector<SenderChunk> sorted_input(const std::vector<Message>& parts, const std::vector<Chunk>& chunks, int n_pre);

}  // namespace sparsesnn
