#include "openmp.h"

#ifdef __linux__
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace sparsesnn {
namespace {

// omp_pause_resource_all of OpenMP 5.0, section 3.2.44, and the kind that keeps a program's data.
using Pause = int (*)(int kind);
constexpr int pause_soft = 1;

std::atomic<bool> forked{false};

// Whether this process has not called exec since its fork.
bool came_from_fork() {
  constexpr unsigned forked_no_exec = 0x40;  // PF_FORKNOEXEC, include/linux/sched.h
  std::FILE* file = std::fopen("/proc/self/stat", "r");
  if (!file) return true;
  char line[1024];
  const std::size_t n = std::fread(line, 1, sizeof(line) - 1, file);
  std::fclose(file);
  line[n] = '\0';
  const char* name_end = std::strrchr(line, ')');  // the name may contain any character
  unsigned flags = 0;
  return !name_end || std::sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1 || (flags & forked_no_exec);
}

int collect_runtimes(dl_phdr_info* library, std::size_t, void* found) {
  const char* slash = std::strrchr(library->dlpi_name, '/');
  const std::string name = slash ? slash + 1 : library->dlpi_name;
  for (const char* known : {"libgomp", "libiomp", "libomp"})
    if (name.rfind(known, 0) == 0) static_cast<std::vector<std::string>*>(found)->push_back(library->dlpi_name);
  return 0;
}

std::vector<Pause> find_runtimes() {
  std::vector<Pause> pauses;
  if (came_from_fork() || pthread_atfork(nullptr, nullptr, [] { forked.store(true); })) return pauses;
  std::vector<std::string> paths;
  dl_iterate_phdr(collect_runtimes, &paths);
  for (const std::string& path : paths)
    if (void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD))  // never closed: the library must stay loaded
      if (void* found = dlsym(library, "omp_pause_resource_all")) pauses.push_back(reinterpret_cast<Pause>(found));
  return pauses;
}

}  // namespace

void rest_openmp_threads() noexcept {
  static const std::vector<Pause> pauses = find_runtimes();
  if (forked.load(std::memory_order_relaxed)) return;
  for (const Pause pause : pauses) pause(pause_soft);
}

}  // namespace sparsesnn
#else
void sparsesnn::rest_openmp_threads() noexcept {}
#endif
