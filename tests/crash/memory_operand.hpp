#pragma once
// Where in memory the next instruction of a traced child reads or writes, as far as its operand is
// in the common encodings (no vector prefixes, no string instructions, no segments). Enough to find
// the loads and stores of atomics.

#include <sys/user.h>

#include <cstdint>
#include <cstring>
#include <optional>

namespace kvhive::testing {

/// The general registers by their number in an instruction.
inline std::uint64_t register_of(const user_regs_struct& registers, unsigned number) {
  const unsigned long long values[] = {registers.rax, registers.rcx, registers.rdx, registers.rbx,
                                       registers.rsp, registers.rbp, registers.rsi, registers.rdi,
                                       registers.r8,  registers.r9,  registers.r10, registers.r11,
                                       registers.r12, registers.r13, registers.r14, registers.r15};
  return values[number];
}

/// The address of the instruction's memory operand. An instruction without one may give a wrong
/// address.
/// \source  Intel's manual, volume 2, chapter 2: prefixes, REX, opcode, ModRM, SIB, displacement
inline std::optional<std::uint64_t> memory_operand(const user_regs_struct& registers) {
  const auto* code = reinterpret_cast<const unsigned char*>(registers.rip);
  while (*code == 0x66 || *code == 0xf0 || *code == 0xf2 || *code == 0xf3) ++code;
  const unsigned rex = (*code & 0xf0) == 0x40 ? *code++ : 0;
  if (*code == 0x0f) ++code;
  ++code;  // the opcode
  const unsigned modrm = *code++;
  const unsigned mode = modrm >> 6;
  unsigned base = modrm & 7;
  if (mode == 3 || (mode == 0 && base == 5)) return std::nullopt;  // none, or relative to rip
  std::uint64_t address = 0;
  if (base == 4) {
    const unsigned sib = *code++;
    base = sib & 7;
    const unsigned index = (sib >> 3 & 7) | (rex & 2) << 2;
    if (index != 4) address = register_of(registers, index) << (sib >> 6);
    if (mode == 0 && base == 5) return std::nullopt;
  }
  address += register_of(registers, base | (rex & 1) << 3);
  if (mode == 1) address += static_cast<std::uint64_t>(static_cast<signed char>(*code));
  if (mode == 2) {
    std::int32_t distance;
    std::memcpy(&distance, code, sizeof distance);
    address += static_cast<std::uint64_t>(static_cast<std::int64_t>(distance));
  }
  return address;
}

}  // namespace kvhive::testing
