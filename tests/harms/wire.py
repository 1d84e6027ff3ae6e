"""What hostile processes say: packets and channels of all protocols that a build may speak."""

import array
import errno
import fcntl
import mmap
import os
import socket
import struct

MAGIC = 0x3170766B
CLIENT_HELLO, REQUESTS_SEALED, REFUSED = 3, 14, 36
SEALS = 0x11  # F_SEAL_SEAL, F_SEAL_FUTURE_WRITE
ANY_ENGINE = 0xFFFFFFFF
BODY_WORDS = {b"kvhivc3": 6, b"kvhivc4": 8}  # numbers of 4 bytes between error_text and the body
KIND_TOKENS, SUBMITTED, FINISHED = 1, 1, 2
version = None


def connect(path, timeout=10.0):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(timeout)
    peer.connect(str(path))
    return peer


def packet(kind, payload, as_version=None):
    return struct.pack("<IIII", MAGIC, version if as_version is None else as_version, kind,
                       len(payload)) + payload


def find_version(path):
    """Asks the daemon: its refusal of a wrong version has the right one in its header."""
    global version
    with connect(path) as peer:
        peer.send(packet(CLIENT_HELLO, bytes(16), as_version=0))
        _, version, kind, _ = struct.unpack("<IIII", peer.recv(4096)[:16])
        assert kind == REFUSED, kind


def hello(channel_bytes=1 << 20, engine=ANY_ENGINE):
    names = bytes(36 + 72) if version >= 18 else bytes(36) if version >= 16 else bytes(4)
    return packet(CLIENT_HELLO, struct.pack("<QI", channel_bytes, engine) + names)


def send_descriptors(peer, data, fds):
    """False = the kernel refused to pass descriptors on."""
    try:
        peer.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        return True
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EPIPE, errno.EINVAL):
            return False
        raise


def say_hello(peer, channel_bytes, engine=ANY_ENGINE):
    """With this process's pidfd, where the daemon takes one."""
    own = os.pidfd_open(os.getpid())
    if not send_descriptors(peer, hello(channel_bytes, engine), [own]):
        peer.send(hello(channel_bytes, engine))
    os.close(own)


def body_of_tokens(prompt, prompt_bytes, results):
    """What follows the kind in a request's body: its ranges and numbers, the stop strings left out."""
    return struct.pack("<6QIIIifffi", prompt, prompt_bytes, results, 4096, results + 4096, 4096,
                       1, 0, 1, 0, 0.0, 1.0, 0.0, 0)


class Channel:
    """A channel that the daemon has given to this process: one file up to protocol 8, then two, of
    which the client writes the first and only reads the second; since protocol 10 it seals the first."""

    def __init__(self, path, channel_bytes=1 << 20, engine=ANY_ENGINE, timeout=10.0, maps=False):
        self.socket = connect(path, timeout)
        say_hello(self.socket, channel_bytes, engine)
        data, self.fds, _, _ = socket.recv_fds(self.socket, 4096, 8)
        if len(self.fds) not in (3, 4):
            raise ConnectionError(data[20:].split(b"\0")[0].decode(errors="replace") or "closed")
        self.has_two_files = len(self.fds) == 4
        self.engine_bell = self.fds[-2]
        if maps:
            self.memory = mmap.mmap(self.fds[0], channel_bytes)
        if maps and self.has_two_files:
            self.answers = mmap.mmap(self.fds[1], channel_bytes, prot=mmap.PROT_READ)
        if version >= 10:
            fcntl.fcntl(self.fds[0], fcntl.F_ADD_SEALS, SEALS)
            self.socket.send(packet(REQUESTS_SEALED, b""))

    def ring(self):
        try:
            os.write(self.engine_bell, struct.pack("<Q", 1))
        except (BlockingIOError, BrokenPipeError):  # rung enough; or the engine has died
            pass

    def name_the_same_tokens(self, prompt_bytes):
        """All slots are submitted with a prompt of `prompt_bytes`: the same bytes of the heap."""
        if self.has_two_files:
            self.name_them_in_two_files(prompt_bytes)
        else:
            self.name_them_in_one_file(prompt_bytes)

    def name_them_in_one_file(self, prompt_bytes):
        memory = self.memory
        slot_bytes, slots = struct.unpack_from("<II", memory, 16)
        heap = (64 + slots * slot_bytes + 63) // 64 * 64
        body_at = 24 + 256 + 4 * BODY_WORDS[memory[:7]]
        body = struct.pack("<Ixxxx", KIND_TOKENS) + body_of_tokens(heap, prompt_bytes,
                                                                  heap + prompt_bytes)
        body = body.ljust(slot_bytes - body_at, b"\0")
        for slot in range(slots):
            at = 64 + slot * slot_bytes
            if struct.unpack_from("<I", memory, at)[0] not in (0, 3):
                continue
            struct.pack_into("<III", memory, at, 0, 0, 0)
            memory[at + body_at:at + slot_bytes] = body
            struct.pack_into("<I", memory, at, SUBMITTED)

    def name_them_in_two_files(self, prompt_bytes):
        slot_bytes, body_bytes, slots = struct.unpack_from("<III", self.answers, 16)
        heap = (slots * (8 + body_bytes) + 63) // 64 * 64
        for slot in range(slots):
            number, phase = struct.unpack_from("<II", self.answers, 64 + slot * slot_bytes)
            submitted, = struct.unpack_from("<I", self.memory, 8 * slot)
            # Since protocol 11 the engine that had the request stands beside the phase.
            has_ended = phase & 0xF == 0 if version >= 11 else phase == FINISHED
            if submitted != number or (number != 0 and not has_ended):
                continue
            body = struct.pack("<II", number + 1, KIND_TOKENS) + body_of_tokens(
                heap, prompt_bytes, 64 + slots * slot_bytes)
            at = 8 * slots + slot * body_bytes
            self.memory[at:at + body_bytes] = body.ljust(body_bytes, b"\0")
            struct.pack_into("<I", self.memory, 8 * slot, number + 1)

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.socket.close()


def lingering_socket(seconds):
    """A TCP socket with unsent data that nobody reads: its last close() waits for `seconds`."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    sender = socket.socket()
    sender.connect(listener.getsockname())
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(65536))
    except BlockingIOError:
        pass
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    return sender, listener
