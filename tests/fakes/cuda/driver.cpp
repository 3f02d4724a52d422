// A stand-in for NVIDIA's driver, libcuda.so.1: the calls that sparsesnn makes, over the host's memory.
//
// It shows that calls through the package cuda.bindings arrive with the arguments that are meant. Work runs at once, or
// is kept while a stream captures. A "module" is any data; its kernel "scale" reads the struct that its one parameter
// points to. Calls out of order, such as work without a context, fail as the driver's do.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

enum Result { success = 0, invalid_value = 1, out_of_memory = 2, invalid_context = 201, invalid_handle = 400, not_found = 500 };

struct Function {
  int shared_bytes = 48 * 1024;
};
struct Graph {
  std::vector<std::function<void()>> work;
};

constexpr size_t total_bytes = 64 << 20;
std::vector<void*> contexts;  // the thread's stack; tests have one thread
std::map<uint64_t, size_t> memory, host_memory;
size_t used_bytes = 0;
int retained = 0;
Graph* capturing = nullptr;
Function scale;
int context_object, stream_object, module_object;

bool current() { return !contexts.empty() && contexts.back() == &context_object; }

Result do_or_keep(void* stream, std::function<void()> work) {
  if (!current()) return invalid_context;
  if (stream != &stream_object) return invalid_handle;
  if (capturing)
    capturing->work.push_back(work);
  else
    work();
  return success;
}

struct ScaleArgs {
  float* x;
  int n;
  float factor;
};

}  // namespace

extern "C" {

Result cuInit(unsigned flags) { return flags ? invalid_value : success; }
Result cuDriverGetVersion(int* version) { return *version = atoi(getenv("STAND_IN_VERSION")), success; }
Result cuDeviceGetCount(int* n) { return *n = 2, success; }
Result cuDeviceGet(int* device, int index) { return *device = 10 + index, success; }
Result cuDeviceGetName(char* name, int size, int) { return strncpy(name, "Stand-in", size), success; }
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device != 10 && device != 11) return invalid_value;
  switch (attribute) {
    case 16:  // multiprocessors
      return *value = 132, success;
    case 75:
      return *value = 9, success;
    case 76:
      return *value = 0, success;
    case 97:  // shared memory of a block that asks for it
      return *value = 232448, success;
  }
  return invalid_value;
}
Result cuGetErrorString(Result code, const char** text) {
  *text = code == out_of_memory ? "out of memory" : "another error";
  return success;
}

Result cuDevicePrimaryCtxRetain(void** context, int) { return ++retained, *context = &context_object, success; }
Result cuDevicePrimaryCtxRelease_v2(int) { return --retained < 0 ? invalid_context : success; }
Result cuCtxPushCurrent_v2(void* context) { return contexts.push_back(context), success; }
Result cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return invalid_context;
  if (context) *context = contexts.back();
  return contexts.pop_back(), success;
}

Result cuStreamCreate(void** stream, unsigned flags) {
  if (!current()) return invalid_context;
  return flags == 1 ? (*stream = &stream_object, success) : invalid_value;
}
Result cuStreamDestroy_v2(void* stream) { return stream == &stream_object ? success : invalid_handle; }
Result cuStreamQuery(void* stream) { return do_or_keep(stream, [] {}); }
Result cuStreamSynchronize(void* stream) { return do_or_keep(stream, [] {}); }

Result cuMemAlloc_v2(uint64_t* address, size_t n) {
  if (!current()) return invalid_context;
  if (n == 0) return invalid_value;
  if (used_bytes + n > total_bytes) return out_of_memory;
  *address = reinterpret_cast<uint64_t>(aligned_alloc(256, (n + 255) / 256 * 256));
  memset(reinterpret_cast<void*>(*address), 0xcc, n);
  used_bytes += memory[*address] = n;
  return success;
}
Result cuMemFree_v2(uint64_t address) {
  if (!current() || !memory.count(address)) return invalid_value;
  used_bytes -= memory[address];
  memory.erase(address);
  return free(reinterpret_cast<void*>(address)), success;
}
Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  return *total = total_bytes, *free_bytes = total_bytes - used_bytes, success;
}
Result cuMemHostAlloc(void** address, size_t n, unsigned flags) {
  if (!current() || flags != 1) return invalid_value;
  *address = malloc(n);
  host_memory[reinterpret_cast<uint64_t>(*address)] = n;
  return success;
}
Result cuMemFreeHost(void* address) {
  if (!current() || !host_memory.erase(reinterpret_cast<uint64_t>(address))) return invalid_value;
  return free(address), success;
}

Result cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, void* stream) {
  return do_or_keep(stream, [=] { memcpy(reinterpret_cast<void*>(to), from, n); });
}
Result cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n, void* stream) {
  return do_or_keep(stream, [=] { memcpy(to, reinterpret_cast<void*>(from), n); });
}
Result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void* stream) {
  return do_or_keep(stream, [=] { memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n); });
}
Result cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void* stream) {
  return do_or_keep(stream, [=] { memset(reinterpret_cast<void*>(to), value, n); });
}

Result cuModuleLoadData(void** module, const void* image) {
  if (!current() || memcmp(image, "\177ELF", 4) != 0) return invalid_value;
  return *module = &module_object, success;
}
Result cuModuleUnload(void* module) { return module == &module_object ? success : invalid_handle; }
Result cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != &module_object) return invalid_handle;
  return strcmp(name, "scale") ? not_found : (*function = &scale, success);
}
Result cuFuncSetAttribute(void* function, int attribute, int value) {
  if (function != &scale || attribute != 8) return invalid_value;
  return scale.shared_bytes = value, success;
}
Result cuLaunchKernel(void* function, unsigned grid, unsigned grid_y, unsigned grid_z, unsigned block, unsigned block_y,
                      unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra) {
  if (function != &scale || extra || grid_y * grid_z * block_y * block_z != 1) return invalid_value;
  if (!grid || block % 32 || static_cast<int>(shared_bytes) > scale.shared_bytes) return invalid_value;
  const ScaleArgs a = *static_cast<const ScaleArgs*>(parameters[0]);  // copied now, as the driver does
  const int threads = grid * block;
  return do_or_keep(stream, [=] {
    for (int k = 0; k < a.n && k < threads; ++k) a.x[k] *= a.factor;
  });
}

Result cuStreamBeginCapture_v2(void* stream, int mode) {
  if (!current() || stream != &stream_object || mode != 1 || capturing) return invalid_value;
  return capturing = new Graph, success;
}
Result cuStreamEndCapture(void* stream, void** graph) {
  if (!current() || stream != &stream_object || !capturing) return invalid_value;
  return *graph = capturing, capturing = nullptr, success;
}
Result cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return flags ? invalid_value : (*executable = new Graph(*static_cast<Graph*>(graph)), success);
}
Result cuGraphLaunch(void* executable, void* stream) {
  return do_or_keep(stream, [=] {
    for (auto& work : static_cast<Graph*>(executable)->work) work();
  });
}
Result cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), success; }
Result cuGraphExecDestroy(void* graph) { return delete static_cast<Graph*>(graph), success; }

// How the package finds the calls: names have no version, which the headers add.
Result cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
  static const std::map<std::string, std::string> renamed = {{"cuGraphInstantiate", "cuGraphInstantiateWithFlags"}};
  const std::string wanted = renamed.count(name) ? renamed.at(name) : name;
  *function = nullptr;
  for (const char* version : {"_v2", ""})
    if (!*function) *function = dlsym(RTLD_DEFAULT, (wanted + version).c_str());
  if (!*function) {
    void* const self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    for (const char* version : {"_v2", ""})
      if (self && !*function) *function = dlsym(self, (wanted + version).c_str());
  }
  if (status) *status = *function ? 0 : 1;
  return *function ? success : not_found;
}

// For tests: bytes that are still allocated, and contexts still retained.
size_t stand_in_left() { return used_bytes + host_memory.size() + contexts.size() + retained; }
}
