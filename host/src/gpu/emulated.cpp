// The machine of machine.h, and the functions that Python calls (sparsesnn/engines/gpu/emulated.py).
#include "host/src/gpu/machine.h"

namespace sparsesnn::emulated {

EmulatedGpu* EmulatedGpu::running_ = nullptr;

namespace {

std::string name_of(Access how) {
  return how == Access::read ? "reads" : how == Access::write ? "writes" : "changes atomically";
}
std::string line_of(Site site) {
  const char* slash = std::strrchr(site.file, '/');
  return std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

}  // namespace

// ---- running -------------------------------------------------------------------------------------------------------

std::string EmulatedGpu::run(const Launch& launch) {
  launch_ = &launch;
  running_ = this;
  error_.clear();
  n_blocks = launch.grid;
  n_threads = launch.block;
  launch_time_ = ++clock_;
  block_times_.clear();
  shared_.resize(launch.shared_bytes);
  shared_cells_.assign(launch.shared_bytes, Cell());
  warps_.resize(launch.block / lanes);
  for (int w = 0; w < launch.block / lanes; ++w) warps_[w] = w;

  std::vector<int> order(launch.grid);
  for (int b = 0; b < launch.grid; ++b) order[b] = b;
  std::shuffle(order.begin(), order.end(), random_);
  for (int b : order) {
    begin_block(b);
    host_.switch_to(threads_[thread].fiber);
    if (!error_.empty()) break;
  }
  return error_;
}

void EmulatedGpu::begin_block(int number) {
  block = number;
  block_time_ = ++clock_;
  block_times_.emplace_back(clock_, number);
  std::fill(shared_.begin(), shared_.end(), static_cast<char>(undefined_byte));
  for (int k = 0; k < n_threads; ++k) stacks_.prepare(threads_[k].fiber, k, begin);
  begin_phase();
}

void EmulatedGpu::begin_phase() {
  phase_time_ = ++clock_;
  std::shuffle(warps_.begin(), warps_.end(), random_);
  turn_ = 0;
  begin_warp();
}

// Starts the warp whose turn it is, at a random lane.
void EmulatedGpu::begin_warp() {
  ++clock_;
  first_lane_ = static_cast<int>(random_() % lanes);
  n_lanes_ = 1;
  thread = warps_[turn_] * lanes + first_lane_;
}

void EmulatedGpu::begin() {
  EmulatedGpu& machine = *running_;
  machine.launch_->entry->run(&machine, machine.launch_->arguments);
  machine.wait({Call::ended, {"", 0}});
}

// Switches to the next thread. Returns once all threads that take part in the call have made it.
void EmulatedGpu::wait(Wait reason) {
  Thread& from = threads_[thread];
  from.wait = reason;
  const int next = next_thread();
  if (next < 0)
    from.fiber.switch_to(host_);
  else if (&threads_[next] != &from)
    from.fiber.switch_to(threads_[next].fiber);
}

// The next thread to run, or -1 if the block has ended.
int EmulatedGpu::next_thread() {
  if (n_lanes_ < lanes) return thread = warps_[turn_] * lanes + (first_lane_ + n_lanes_++) % lanes;
  const int first = warps_[turn_] * lanes;
  for (int l = 1; l < lanes; ++l)
    if (!(threads_[first + l].wait == threads_[first].wait)) refuse_divergence(first, first + l);
  const Call call = threads_[first].wait.call;
  if (call == Call::ended || call == Call::barrier) {
    if (++turn_ < warps_.size()) return begin_warp(), thread;
    for (int k = lanes; k < n_threads; k += lanes)
      if (!(threads_[k].wait == threads_[0].wait)) refuse_divergence(0, k);
    if (call == Call::ended) return -1;
    begin_phase();
  } else if (call == Call::warp_barrier) {
    begin_warp();
  } else {
    hand_over(&threads_[first]);
    n_lanes_ = 1;
    thread = first + first_lane_;
  }
  return thread;
}

void EmulatedGpu::refuse_divergence(int one, int other) {
  const Wait &a = threads_[one].wait, &b = threads_[other].wait;
  const auto text = [](const Wait& wait) {
    const char* const names[] = {"", "barrier", "warp_barrier", "ballot", "shuffle"};
    if (wait.call == Call::ended) return std::string("has ended");
    return std::string("waits at ") + names[static_cast<int>(wait.call)] + " (" + line_of(wait.site) + ")";
  };
  const bool is_block = one / lanes != other / lanes;
  thread = a.call == Call::ended ? other : one;
  fail(threads_[thread].wait.site, std::string("threads of one ") + (is_block ? "block" : "warp") +
                                       " diverge: thread " + std::to_string(one) + " " + text(a) + ", thread " +
                                       std::to_string(other) + " " + text(b));
}

// Copies the values of all lanes. No lane makes its next call before all have read them.
void EmulatedGpu::hand_over(const Thread* warp) {
  ballot_ = 0;
  for (int l = 0; l < lanes; ++l) {
    handed_over_[l] = warp[l].value;
    ballot_ |= static_cast<uint32>(warp[l].value & 1) << l;
  }
}

uint32 EmulatedGpu::ballot(bool condition, Site site) {
  threads_[thread].value = condition;
  wait({Call::ballot, site});
  return ballot_;
}

uint64 EmulatedGpu::of_lane(uint64 value, int lane, Site site) {
  if (lane < 0 || lane >= lanes) fail(site, "shuffles with lane " + std::to_string(lane) + "; a warp has 32");
  threads_[thread].value = value;
  wait({Call::shuffle, site});
  return handed_over_[lane];
}

// ---- accesses ------------------------------------------------------------------------------------------------------

void* EmulatedGpu::reach(const Range& range, Access how, Site site) {
  const Array* array = nullptr;
  uint64 begin = 0, end = shared_.size();
  if (!range.is_shared) {
    array = memory.find(range.address);
    if (!array) fail(site, how, range, array, "not an address of the device's memory");
    if (array->is_free) fail(site, how, range, array, "which has been freed");
    begin = array->begin, end = array->end;
  }
  // in bytes from the array's begin, so that no index wraps around
  const int64 n_bytes = int64(end - begin), first = int64(range.address - begin) + range.k * range.size;
  if (range.k > n_bytes || range.k < -n_bytes || first < 0 || first + range.n * range.size > n_bytes)
    fail(site, how, range, array, "out of bounds");
  if ((begin + first) % range.alignment)
    fail(site, how, range, array, "misaligned: the address must be a multiple of " + std::to_string(range.alignment));

  const Now now{range.is_shared ? block_time_ : launch_time_, block_time_, phase_time_, clock_, thread};
  Cell* cells = (range.is_shared ? shared_cells_.data() : array->cells) + first;
  const Cell before = cells[0];
  check(cells, how, site, now, range, array);
  for (int k = 1; k < range.n * range.size; ++k) {
    if (cells[k].writer.bits == before.writer.bits && cells[k].reader.bits == before.reader.bits)
      cells[k] = cells[0];  // most often all bytes of an element have the same past
    else
      check(cells + k, how, site, now, range, array);
  }
  return range.is_shared ? static_cast<void*>(shared_.data() + first) : reinterpret_cast<void*>(begin + first);
}

void EmulatedGpu::check(Cell* cell, Access how, Site site, const Now& now, const Range& range, const Array* array) {
  const bool is_unwritten = range.is_shared ? cell->writer.time() < now.block : !cell->writer.bits;
  if (how != Access::write && is_unwritten) fail(site, how, range, array, "which nothing has written so far");
  const bool both_atomic = how == Access::atomic && cell->writer.is_atomic();
  if (const Scope scope = now.conflict(cell->writer); scope != Scope::thread && !both_atomic)
    fail(site, how, range, array, race("wrote", cell->writer, scope));
  if (how == Access::read) {
    cell->reader = now.joined(cell->reader, false);
    return;
  }
  if (const Scope scope = now.conflict(cell->reader); scope != Scope::thread)
    fail(site, how, range, array, race("read", cell->reader, scope));
  cell->writer = both_atomic ? now.joined(cell->writer, true)
                             : Record::of(now.interval, thread, Scope::thread, how == Access::atomic);
}

std::string EmulatedGpu::race(const char* did, Record record, Scope scope) const {
  std::string other = "thread " + std::to_string(record.thread()), remedy = " without a barrier in between";
  if (scope == Scope::lanes) remedy = " without a barrier or warp_barrier in between";
  if (scope == Scope::blocks) {
    const auto after = std::upper_bound(block_times_.begin(), block_times_.end(), std::pair(record.time(), 1 << 30));
    const int last = std::prev(after)->second;
    other = last == block ? "another block" : "block " + std::to_string(last);
    remedy = " in the same launch";
  }
  return "a race: " + other + " " + did + " it" + remedy;
}

uint64 EmulatedGpu::moved(const Range& range, Site site) {
  const uint64 to = range.address + range.k * range.size;
  if (range.is_shared) return to;
  const Array* array = memory.find(range.address);
  if (array && (to < array->begin || to > array->end))
    fail(site, "moves a pointer by " + std::to_string(range.k) + ", out of '" + array->what + "' (" +
                   std::to_string(array->n_bytes()) + " bytes)");
  return to;
}

void EmulatedGpu::fail(Site site, Access how, const Range& range, const Array* array, const std::string& why) {
  const int64 offset = int64(range.address - (array ? array->begin : 0)), element = offset / range.size + range.k;
  std::string place = name_of(how) + " element " + std::to_string(element);
  if (range.n > 1) place += " to " + std::to_string(element + range.n - 1);
  if (range.is_shared)
    place += " of shared memory (" + std::to_string(shared_.size()) + " bytes";
  else if (array)
    place += " of '" + array->what + "' (" + std::to_string(array->n_bytes()) + " bytes";
  else
    place =
        name_of(how) + " element " + std::to_string(range.k) + " from address " + std::to_string(range.address) + " (";
  place += (place.back() == '(' ? "" : ", ") + std::to_string(range.size) + " each): ";
  fail(site, place + why);
}

// Never returns: the launch ends here. Nothing in a kernel needs a destructor.
void EmulatedGpu::fail(Site site, const std::string& text) {
  error_ = "block " + std::to_string(block) + ", thread " + std::to_string(thread);
  if (site.line) error_ += ", " + line_of(site);
  error_ += ": " + text;
  Fiber lost;
  lost.switch_to(host_);
  __builtin_unreachable();
}

// ---- the host ------------------------------------------------------------------------------------------------------

void EmulatedGpu::written(Array& array, uint64_t address, uint64_t n_bytes, const Array* source, uint64_t from) {
  const Record record = Record::of(++clock_, 0, Scope::thread, false);
  Cell* to = array.cells_at(address);
  for (uint64_t k = 0; k < n_bytes; ++k)
    to[k] = {source && !source->cells_at(from)[k].writer.bits ? Record() : record, Record()};
}

}  // namespace sparsesnn::emulated

// ---- called from Python: null, or an error message that is valid until the next call
// ----------------------------------

using namespace sparsesnn::emulated;

namespace {

std::string message;

const char* answer(const std::string& text) {
  message = text;
  return message.empty() ? nullptr : message.c_str();
}

// The array that holds n_bytes from an address on; or null, with the reason in `message`.
Array* array_at(EmulatedGpu* machine, uint64_t address, uint64_t n_bytes) {
  Array* array = machine->memory.find(address);
  if (!array)
    message = "address " + std::to_string(address) + " is not in the device's memory";
  else if (array->is_free)
    message = "'" + array->what + "' has been freed";
  else if (n_bytes > array->end - address)
    message = "out of bounds: " + std::to_string(n_bytes) + " bytes from byte " +
              std::to_string(address - array->begin) + " of '" + array->what + "', which has " +
              std::to_string(array->n_bytes());
  else
    return array;
  return nullptr;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

EmulatedGpu* emulated_create(uint64_t seed) { return new EmulatedGpu(seed); }
void emulated_destroy(EmulatedGpu* machine) { delete machine; }

uint64_t emulated_allocate(EmulatedGpu* machine, uint64_t n_bytes, const char* what) {
  return machine->memory.allocate(n_bytes, what);
}

const char* emulated_free(EmulatedGpu* machine, uint64_t address) {
  Array* array = array_at(machine, address, 0);
  if (!array) return message.c_str();
  if (address != array->begin) return answer("the address lies within '" + array->what + "', not at its begin");
  machine->memory.free(*array);
  return nullptr;
}

const char* emulated_upload(EmulatedGpu* machine, uint64_t address, const void* data, uint64_t n_bytes) {
  Array* array = array_at(machine, address, n_bytes);
  if (!array) return message.c_str();
  std::memcpy(reinterpret_cast<void*>(address), data, n_bytes);
  machine->written(*array, address, n_bytes);
  return nullptr;
}

const char* emulated_download(EmulatedGpu* machine, uint64_t address, void* data, uint64_t n_bytes) {
  if (!array_at(machine, address, n_bytes)) return message.c_str();
  std::memcpy(data, reinterpret_cast<const void*>(address), n_bytes);
  return nullptr;
}

const char* emulated_fill(EmulatedGpu* machine, uint64_t address, uint64_t n_bytes) {
  Array* array = array_at(machine, address, n_bytes);
  if (!array) return message.c_str();
  std::memset(reinterpret_cast<void*>(address), 0, n_bytes);
  machine->written(*array, address, n_bytes);
  return nullptr;
}

const char* emulated_copy(EmulatedGpu* machine, uint64_t to, uint64_t from, uint64_t n_bytes) {
  Array *target = array_at(machine, to, n_bytes), *source = target ? array_at(machine, from, n_bytes) : nullptr;
  if (!source) return message.c_str();
  if (to < from + n_bytes && from < to + n_bytes && n_bytes) return answer("the ranges overlap");
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), n_bytes);
  machine->written(*target, to, n_bytes, source, from);
  return nullptr;
}

const char* emulated_launch(EmulatedGpu* machine, const Entry* entry, int grid, int block, int shared_bytes,
                            const void* arguments, int arguments_bytes) {
  if (arguments_bytes != entry->arguments_bytes)
    return answer("the struct of arguments has " + std::to_string(arguments_bytes) + " bytes, the kernel's has " +
                  std::to_string(entry->arguments_bytes));
  if (block < 1 || block > entry->max_threads || block > max_block || block % lanes)
    return answer("a block of " + std::to_string(block) + " threads; a multiple of 32 up to " +
                  std::to_string(std::min(entry->max_threads, max_block)) + " is allowed");
  if (grid < 1) return answer("a grid of " + std::to_string(grid) + " blocks; at least 1 is required");
  return answer(machine->run({entry, grid, block, shared_bytes, arguments}));
}

}  // extern "C"
#pragma GCC visibility pop
