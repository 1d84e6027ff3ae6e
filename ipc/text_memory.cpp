#include "ipc/text_memory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/memory/memory_object.hpp"

namespace kvhive {

Expected<UniqueFd> write_text_memory(std::string_view text) {
  auto memory = open_memory("kvhive-text");
  if (!memory) return memory;
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(memory->get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return os_failure("write a text to shared memory");
    done += static_cast<std::size_t>(wrote);
  }
  if (auto sealed = seal_memory(*memory, "kvhive-text"); !sealed) return forward_error(sealed);
  return memory;
}

Expected<std::string> read_text_memory(const UniqueFd& memory) {
  struct stat status {};
  if (fstat(memory.get(), &status) != 0) return os_failure("fstat a text in shared memory");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t got =
        pread(memory.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return os_failure("read a text in shared memory");
    done += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace kvhive
