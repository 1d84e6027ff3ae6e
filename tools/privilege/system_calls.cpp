#include "tools/privilege/system_calls.hpp"

#include <seccomp.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <system_error>

#include "base/log.hpp"
#include "tools/privilege/call_reports.hpp"

namespace kvhive {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;

/// \param what   names the step that failed
/// \param result of libseccomp: 0 or a negative errno
Expected<void> checked(const std::string& what, int result) {
  if (result == 0) return {};
  return failure(Errc::os_error, "system-call-filter: " + what + ": " +
                                     std::generic_category().message(-result) +
                                     "; --system-call-filter off starts without filters");
}

Expected<void> set_attributes(const Filter& filter) {
  // kvhive makes no 32-bit system calls.
  if (auto set =
          checked("set the rule for 32-bit calls",
                  seccomp_attr_set(filter.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS)));
      !set)
    return set;
  // By default a filter makes Linux before 5.16 switch speculation off, which slows engines down.
  if (auto set =
          checked("keep speculation", seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_SSB, 1));
      !set)
    return set;
  if (auto set =
          checked("sort the rules", seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2));
      !set)
    return set;
  // The filter holds for the threads that are there already, too.
  return checked("set the rule for all threads",
                 seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1));
}

Expected<void> allow(const Filter& filter, const char* name) {
  const int number = seccomp_syscall_resolve_name(name);
  if (number == __NR_SCMP_ERROR) return {};  // this CPU, or this libseccomp, does not know it
  return checked(name, seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, 0));
}

Expected<void> allow(const Filter& filter, const CallWithArgument& call) {
  const int number = seccomp_syscall_resolve_name(call.name);
  if (number == __NR_SCMP_ERROR) return {};
  const scmp_arg_cmp condition = {call.argument, SCMP_CMP_MASKED_EQ, call.mask, call.value};
  return checked(call.name, seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, 1, condition));
}

Expected<void> fill(const Filter& filter, const CallList& list, bool refuses_silently) {
  for (const auto& calls : list.calls)
    for (const char* const name : calls)
      if (auto allowed = allow(filter, name); !allowed) return allowed;
  for (const auto& calls : list.with_argument)
    for (const CallWithArgument& call : calls)
      if (auto allowed = allow(filter, call); !allowed) return allowed;
  if (auto own = allow(filter, {"tgkill", 0, ~0u, static_cast<unsigned>(getpid())}); !own)
    return own;
  if (refuses_silently) return {};
  // clone3 takes its flags from memory, where a filter cannot look. Without it, the C library calls
  // clone. It does so with all signals blocked, hence no SIGSYS.
  return checked("clone3", seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS),
                                            seccomp_syscall_resolve_name("clone3"), 0));
}

Expected<void> load(Program program) {
  // A process that the keeper starts inherits the filter, but has no handler of SIGSYS yet: it must
  // not die of a call that the keeper's list misses. Such a call fails and is told by the kernel's
  // audit log alone.
  const bool has_children = program == Program::keeper;
  const Filter filter(seccomp_init(has_children ? SCMP_ACT_ERRNO(ENOSYS) : SCMP_ACT_TRAP),
                      seccomp_release);
  if (filter == nullptr) return failure(Errc::os_error, "system-call-filter: no memory");
  if (auto set = set_attributes(filter); !set) return set;
  if (has_children)
    if (auto logged = checked("log", seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_LOG, 1));
        !logged)
      return logged;
  if (auto filled = fill(filter, calls_of(program), has_children); !filled) return filled;
  return checked("load the filter", seccomp_load(filter.get()));
}

}  // namespace

Expected<void> keep_only_calls_of(Program program, SystemCallFilter wanted) {
  if (wanted == SystemCallFilter::off || kIsSanitized) return {};
  if (program != Program::keeper)
    if (auto reporting = report_refused_calls(); !reporting) return reporting;
  auto loaded = load(program);
  if (loaded || wanted == SystemCallFilter::on) return loaded;
  spdlog::warn("{}; the {} goes on without a filter", loaded.error().text, to_string(program));
  return {};
}

}  // namespace kvhive
