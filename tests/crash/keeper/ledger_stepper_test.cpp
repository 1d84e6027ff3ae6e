// A keeper may be killed at every instruction of what it does to its ledger: whoever reads it then
// finds the rows of one commit, complete, and can go on writing. (What else a keeper does between
// two system calls nobody sees.)

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/crash/traced_child.hpp"
#include "tests/support/sanitizers.hpp"
#include "tools/keeper/succession/ledger.hpp"

namespace kvhive::testing {
namespace {

using Kind = Ledger::Kind;
using Text = LedgerMemory::Text;

struct Row {
  std::uint64_t a = 0, b = 0;
  friend bool operator==(const Row&, const Row&) = default;
};
using Rows = std::map<std::uint64_t, Row>;

Rows rows_of(const Ledger& ledger) {
  Rows rows;
  ledger.for_each<Row>(Kind::peer, [&](std::uint64_t key, const Row& row) { rows[key] = row; });
  return rows;
}

/// All of a ledger's memory that has been written.
class Bytes {
 public:
  explicit Bytes(const LedgerMemory& memory)
      : size_(static_cast<std::size_t>(lseek(memory.fd(), 0, SEEK_END))),
        data_(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0)) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { munmap(data_, size_); }

  bool operator==(const Bytes& other) const { return std::memcmp(data_, other.data_, size_) == 0; }
  void copy_from(const Bytes& other) { std::memcpy(data_, other.data_, size_); }

 private:
  std::size_t size_;
  void* data_;
};

/// What a keeper writes in two events.
const Rows kBefore = {{1, {1, 1}}, {2, {2, 2}}, {3, {3, 3}}, {4, {4, 4}}};
const Rows kAfterFirst = {{1, {1, 9}}, {2, {2, 9}}, {4, {4, 4}}, {5, {5, 5}}};
const Rows kAfterSecond = {{2, {2, 9}}, {3, {3, 9}}, {4, {4, 9}}};

void write_both(const LedgerMemory& memory) {
  Ledger ledger(memory);
  ledger.put(Kind::peer, 1, Row{1, 7});
  ledger.put(Kind::peer, 1, Row{1, 9});
  ledger.erase(Kind::peer, 2);
  ledger.put(Kind::peer, 2, Row{2, 9});
  ledger.put(Kind::peer, 5, Row{5, 5});
  ledger.erase(Kind::peer, 3);
  memory.write_text(Text::options, "the second text");
  ledger.commit();
  ledger.erase(Kind::peer, 1);
  ledger.put(Kind::peer, 3, Row{3, 9});
  ledger.put(Kind::peer, 6, Row{6, 6});
  ledger.erase(Kind::peer, 6);
  ledger.erase(Kind::peer, 5);
  ledger.put(Kind::peer, 4, Row{4, 9});
  memory.write_text(Text::options, "the third");
  ledger.commit();
}

/// A successor finds one of the states, and goes on from it: what is gone does not come back.
void expect_sound(const LedgerMemory& memory, std::size_t& state, std::size_t step) {
  const std::vector<const Rows*> states = {&kBefore, &kAfterFirst, &kAfterSecond};
  Ledger successor(memory);
  const Rows found = rows_of(successor);
  std::size_t now = 0;
  while (now < states.size() && found != *states[now]) ++now;
  ASSERT_LT(now, states.size()) << "at step " << step << ": a mixture";
  ASSERT_GE(now, state) << "at step " << step << ": what was committed is lost";
  state = now;
  const std::string text = memory.text(Text::options);
  ASSERT_TRUE(text == "a first text" || text == "the second text" || text == "the third")
      << "at step " << step << ": " << text;
  successor.erase(Kind::peer, 4);
  successor.put(Kind::peer, 2, Row{20, 20});
  successor.put(Kind::peer, 7, Row{7, 7});
  successor.commit();
  Rows expected = found;
  expected.erase(4);
  expected[2] = {20, 20};
  expected[7] = {7, 7};
  ASSERT_EQ(rows_of(Ledger(memory)), expected) << "at step " << step;
}

TEST(LedgerStepper, EveryInstructionMayBeTheLast) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: sanitizers do not work under ptrace";
  if (!TracedChild::is_allowed()) GTEST_SKIP() << "NOT RUN: ptrace is forbidden";
  const LedgerMemory memory = LedgerMemory::create().value();
  {
    Ledger ledger(memory);
    for (const auto& [key, row] : kBefore) ledger.put(Kind::peer, key, row);
    memory.write_text(Text::options, "a first text");
    ledger.commit();
  }
  const LedgerMemory copied = LedgerMemory::create().value(), seen = LedgerMemory::create().value();
  const Bytes bytes(memory);
  Bytes bytes_of_copy(copied), bytes_seen(seen);
  TracedChild child([&] { write_both(memory); });
  std::size_t state = 0, steps = 0, different = 0;
  do {
    ++steps;
    if (bytes == bytes_seen) continue;
    ++different;
    bytes_seen.copy_from(bytes);
    bytes_of_copy.copy_from(bytes);
    expect_sound(copied, state, steps);
    if (HasFatalFailure()) return;
  } while (child.step());
  EXPECT_EQ(state, 2u);
  EXPECT_GT(different, 50u);
  std::printf("%zu instructions, %zu different states, 0 violations\n", steps, different);
}

}  // namespace
}  // namespace kvhive::testing
