"""A client of a build's own libkvhive.so, through its C API (client/include/kvhive/kvhive.h)."""

import ctypes as c


class Options(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("socket", c.c_char_p), ("engine", c.c_int32),
                ("connect_timeout_ms", c.c_int32), ("channel_bytes", c.c_uint64)]


class Request(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("prompt", c.c_char_p), ("prompt_bytes", c.c_size_t),
                ("prompt_tokens", c.c_void_p), ("prompt_token_count", c.c_size_t),
                ("stop", c.c_void_p), ("stop_count", c.c_size_t),
                ("stop_tokens", c.c_void_p), ("stop_token_count", c.c_size_t),
                ("most_text_bytes", c.c_uint64), ("seed", c.c_uint64), ("has_seed", c.c_int32),
                ("max_tokens", c.c_uint32), ("temperature", c.c_float), ("top_p", c.c_float),
                ("min_p", c.c_float), ("top_k", c.c_int32), ("logprobs", c.c_uint32),
                ("ignore_eos", c.c_int32), ("priority", c.c_int32)]


class Progress(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("tokens", c.c_void_p), ("token_count", c.c_size_t),
                ("text", c.c_char_p), ("text_bytes", c.c_size_t), ("whole_text_bytes", c.c_size_t),
                ("error_text", c.c_char_p), ("error", c.c_int32), ("finish", c.c_int32),
                ("engine", c.c_int32), ("prompt_tokens", c.c_uint32),
                ("cached_tokens", c.c_uint32), ("preemptions", c.c_uint32)]


ENDED_BY_ERROR = 4  # KVHIVE_FINISH_ERROR
OK = 0
loaded = None


def load(path):
    """To be called before a process becomes another user, who may not be able to read the file."""
    global loaded
    loaded = c.CDLL(str(path))
    loaded.kvhive_last_error.restype = c.c_char_p
    loaded.kvhive_close.argtypes = [c.c_void_p]
    loaded.kvhive_serving_engine.argtypes = [c.c_void_p]
    loaded.kvhive_wait.argtypes = [c.c_void_p, c.c_int32]
    loaded.kvhive_submit.argtypes = [c.c_void_p, c.POINTER(Request), c.POINTER(c.c_uint64)]
    loaded.kvhive_read.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(Progress)]


class Refused(Exception):
    pass


def check(code):
    if code != OK:
        raise Refused(loaded.kvhive_last_error().decode())


class Client:
    def __init__(self, socket, engine=-1, channel_bytes=0, timeout=10.0):
        options = Options(c.sizeof(Options), str(socket).encode(), engine, int(timeout * 1000),
                          channel_bytes)
        self.handle = c.c_void_p()
        check(loaded.kvhive_connect(c.byref(options), c.byref(self.handle)))

    def submit(self, prompt, max_tokens=1):
        request = Request(struct_size=c.sizeof(Request), prompt=prompt, prompt_bytes=len(prompt),
                          max_tokens=max_tokens, top_p=1.0, ignore_eos=1)
        number = c.c_uint64()
        check(loaded.kvhive_submit(self.handle, c.byref(request), c.byref(number)))
        return number.value

    def wait(self, seconds):
        check(loaded.kvhive_wait(self.handle, int(seconds * 1000)))

    def read(self, number):
        progress = Progress(struct_size=c.sizeof(Progress))
        check(loaded.kvhive_read(self.handle, number, c.byref(progress)))
        return progress

    def serving_engine(self):
        return loaded.kvhive_serving_engine(self.handle)

    def first_token(self, prompt):
        """Sends a request of one token and waits for it, as long as it takes."""
        number = self.submit(prompt)
        while True:
            progress = self.read(number)
            if progress.finish == ENDED_BY_ERROR:
                raise Refused(progress.error_text.decode())
            if progress.finish or progress.token_count:
                return
            self.wait(1.0)

    def close(self):
        loaded.kvhive_close(self.handle)
        self.handle = c.c_void_p()
