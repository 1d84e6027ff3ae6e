#pragma once
// The files of the page, as a browser gets them. They are part of the program.

#include <span>
#include <string_view>

namespace kvhive {

struct PageFile {
  std::string_view path;  ///< as it is asked for
  std::string_view content_type, content;
};
std::span<const PageFile> page_files();

}  // namespace kvhive
