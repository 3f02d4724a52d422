// Fibers: functions that hand the processor to one another, each with a separate stack.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#if !defined(__ELF__) || !(defined(__x86_64__) || defined(__aarch64__))
#include <ucontext.h>
#endif

namespace sparsesnn::emulated {

#if defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__))

// Saves the registers that a call preserves on the stack, leaves the stack's address in *from, and continues at `to`.
extern "C" void sparsesnn_switch(void** from, void* to);

#ifdef __x86_64__
asm(R"(
.text
.globl sparsesnn_switch
.hidden sparsesnn_switch
.type sparsesnn_switch,@function
sparsesnn_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
constexpr int saved_words = 6 + 2, return_word = 6;  // the second word aligns the stack as after a call
#else
asm(R"(
.text
.globl sparsesnn_switch
.hidden sparsesnn_switch
.type sparsesnn_switch,%function
sparsesnn_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
constexpr int saved_words = 20, return_word = 11;
#endif

class Fiber {
 public:
  // The fiber will begin with `start`, which never returns.
  void prepare(char* stack, size_t n_bytes, void (*start)()) {
    uint64_t* words = reinterpret_cast<uint64_t*>(stack + n_bytes) - saved_words;
    std::memset(words, 0, saved_words * sizeof(uint64_t));
    words[return_word] = reinterpret_cast<uint64_t>(start);
    stack_ = words;
  }
  void switch_to(Fiber& other) { sparsesnn_switch(&stack_, other.stack_); }

 private:
  void* stack_ = nullptr;
};

#else

class Fiber {
 public:
  void prepare(char* stack, size_t n_bytes, void (*start)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = n_bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, start, 0);
  }
  void switch_to(Fiber& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_;
};

#endif

// The stacks of many fibers, each above a page that no one may touch.
class Stacks {
 public:
  static constexpr size_t n_bytes = 128 << 10;

  explicit Stacks(int n) : size_(n * n_bytes) {
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
    for (int k = 0; k < n; ++k) mprotect(memory_ + k * n_bytes, guard(), PROT_NONE);
  }
  ~Stacks() { munmap(memory_, size_); }
  Stacks(const Stacks&) = delete;

  void prepare(Fiber& fiber, int k, void (*start)()) {
    fiber.prepare(memory_ + k * n_bytes + guard(), n_bytes - guard(), start);
  }

 private:
  static size_t guard() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

  char* memory_;
  size_t size_;
};

}  // namespace sparsesnn::emulated
