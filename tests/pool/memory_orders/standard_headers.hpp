#pragma once
// The standard headers that name memory orders and that the pool's sources include. They are
// included before the macros redefine the orders, so that only the pool's own uses are weakened.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>
