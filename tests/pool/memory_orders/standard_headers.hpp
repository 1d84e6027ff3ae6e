#pragma once
// What the pool's sources include of the standard library and mentions memory orders: read before
// these change their meaning, so that only the pool's own are weakened.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>
