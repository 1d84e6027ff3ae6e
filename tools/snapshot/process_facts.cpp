#include "tools/snapshot/process_facts.hpp"

#include <unistd.h>

#include <fstream>
#include <sstream>

namespace kvhive {

std::optional<ProcessFacts> facts_of(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // fails without an exception if the process ends meanwhile
  // "pid (name) state ...": the name may have brackets and blanks of its own.
  const std::size_t begin = text.find('('), end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  ProcessFacts facts;
  facts.program = text.substr(begin + 1, end - begin - 1);
  std::istringstream rest(text.substr(end + 1));
  rest >> facts.state;
  constexpr int kFieldsBeforeStart = 18;  // proc(5): start is field 22, state is field 3
  std::string skipped;
  for (int i = 0; i < kFieldsBeforeStart; ++i) rest >> skipped;
  std::uint64_t start_ticks = 0;
  rest >> start_ticks;
  double up_seconds = 0;
  std::ifstream("/proc/uptime") >> up_seconds;
  const double started =
      static_cast<double>(start_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  if (up_seconds > started) facts.age_seconds = static_cast<std::uint64_t>(up_seconds - started);
  return facts;
}

}  // namespace kvhive
