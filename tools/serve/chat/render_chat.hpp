#pragma once
// The program that the process which renders chat templates runs: render_chat.py.

namespace kvhive {

extern const char* const kRenderChat;

}  // namespace kvhive
