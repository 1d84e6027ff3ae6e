#pragma once
// Which build a program is, and with which others it can share a daemon and a pool.

#include <string>

namespace kvhive {

/// "kvhived 0.1.0 (control protocol 10, pool format 6)". Programs work together if both numbers are
/// equal.
std::string version_text(const std::string& program);

/// "0.1.0"
std::string release();

}  // namespace kvhive
