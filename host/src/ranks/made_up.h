// Messages of the other ranks in a dry run (host/comm/dry_run.py): as active as this rank's, scaled to the neurons that
// they own. Their spikes are those of this rank's neurons, shifted by a few lists per rank, so that ranks do not fire
// in unison.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "exchange.h"
#include "sorted_lists.h"

namespace sparsesnn {

// A recurrent layer's spikes from rank `other`, modeled on this rank's (sharded_forward.cpp): n_kinds counts of each of
// n_lists lists after the ids, uint32 if `wide`.
Array<unsigned char> made_up_spikes(const Message& own, std::size_t n_lists, std::size_t n_kinds, bool wide,
                                    const LayerRanks& ranks, int other);

// A population's lists of rank `other`, as shard_message makes them. Rank r owns neurons first[r]..first[r + 1] - 1.
// own: those of `rank`, whose offsets are null if it has no neurons; `limited`: the population has a capacity; order:
// null if its ranks do not sort its lists.
Array<unsigned char> made_up_lists(const Lists& own, int n_steps, int n_samples,
                                   const std::vector<std::uint32_t>& first, std::size_t rank, std::size_t other,
                                   bool limited, const std::optional<ListOrder>& order);

}  // namespace sparsesnn
