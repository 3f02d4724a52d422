// Costs of the codelets' work, in bundles: issue slots of one worker, each for a load or store together with one float
// operation. None is measured on an IPU. They are read off the inner loops and poplibs' published estimators, and each
// has its own name, so that a measurement can replace it. The planner predicts with the same names and numbers
// (`CycleAssumptions` in sparsesnn/partition/ipu/work.py).
#pragma once

#include <cstdint>

namespace sparsesnn::emulator {

struct Work {
  int deliver_list = 15;  // one list of one sample: its counts and pointers
  int deliver_id = 4;     // load an id, address, loop
  int deliver_pair = 2;   // load two weights, add them to two currents
  int step_sample = 10;   // pointers of one sample
  int step_pair = 20;     // decay, reset, two comparisons, masks: two neurons
  int step_state = 5;     // each further state
  int operation = 1;      // on floats, one neuron, beyond a decay for each state
  int select_word = 4;    // store a mask word
  int compact_list = 90;  // counts, capacity, rotation of one list
  int compact_count = 3;  // load a mask word, count its bits, add
  int compact_word = 5;   // look for candidates in a mask word
  int compact_id = 10;    // find a bit, write an id
  int fetch_list = 20;    // one list that is sent again
  int fetch_id = 5;       // copy two ids, or put one into its bucket
  int state_sample = 15;  // pointers of one sample
  int state_pair = 8;     // decay of ∂L/∂v, gradient of the current: two neurons
  int state_search = 8;   // one halving in the search for the shard's part of a list
  int state_id = 20;      // σ' and gradient of a listed neuron
  int share_list = 15;    // one list of one sample
  int share_id = 8;       // sum over lanes, store
  int share_pair = 2;     // two products
  int weight_list = 12;   // one bucket of one sample
  int weight_id = 5;      // load an id, address, loop
  int weight_pair = 3;    // load, add, store two gradients
  int reduce_row = 6;     // one row of shares
  int reduce_pair = 2;    // load two, add two
  int adam_pair = 40;     // two updates with a square root and a division each
  int sgd_pair = 4;       // two updates
  int norm_pair = 3;      // two squares
  int loss_value = 20;    // one potential or count: exponential, division
};

inline Work& work() {
  static Work costs;
  return costs;
}

}  // namespace sparsesnn::emulator
