// Part of the emulated machine: the 16-bit float of IEEE 754. Tiles have it in hardware, under this global name.
#pragma once

#include <cstdint>
#include <cstring>

class half {
 public:
  half() = default;
  half(float x) : bits_(round(x)) {}
  operator float() const {
    const std::uint32_t sign = (bits_ & 0x8000u) << 16, exponent = bits_ >> 10 & 31, fraction = bits_ & 1023;
    float x;
    if (exponent == 0) {  // below 2^-14: multiples of 2^-24
      x = static_cast<float>(fraction) * 0x1p-24f;
      return sign ? -x : x;
    }
    const std::uint32_t word = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    std::memcpy(&x, &word, sizeof(x));
    return x;
  }

 private:
  // To the nearest, ties to even; values that are too large become infinite.
  static std::uint16_t round(float x) {
    std::uint32_t word;
    std::memcpy(&word, &x, sizeof(word));
    const auto sign = static_cast<std::uint16_t>(word >> 16 & 0x8000u);
    word &= 0x7fffffffu;
    if (word > 0x7f800000u) return sign | 0x7e00u;   // not a number
    if (word >= 0x477ff000u) return sign | 0x7c00u;  // from 65520 on
    if (word < 0x38800000u) {                        // below 2^-14: adding 0.5 rounds to multiples of 2^-24
      float y;
      std::memcpy(&y, &word, sizeof(y));
      y += 0.5f;
      std::memcpy(&word, &y, sizeof(word));
      return static_cast<std::uint16_t>(sign | (word - 0x3f000000u));
    }
    return static_cast<std::uint16_t>(sign | ((word + 0xfffu + (word >> 13 & 1u) - 0x38000000u) >> 13));
  }

  std::uint16_t bits_;
};
