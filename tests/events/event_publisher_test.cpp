// A publisher and its subscribers over real sockets, in one thread: serve_replays is the
// publisher's turn.

#include "tools/events/event_publisher.hpp"

#include <gmock/gmock.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <optional>

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Numbered = std::pair<std::uint64_t, std::string>;
constexpr std::uint64_t kEnd = ~0ull;

std::string big_endian(std::uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(number >> shift));
  return bytes;
}

std::uint64_t number_in(const zmq::message_t& bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    number = number << 8 | bytes.data<unsigned char>()[i];
  return number;
}

/// A socket that gives up after ten seconds.
zmq::socket_t connected(zmq::context_t& context, int type, const std::string& endpoint) {
  zmq::socket_t socket(context, type);
  socket.set(zmq::sockopt::rcvtimeo, 10'000);
  socket.set(zmq::sockopt::linger, 0);
  if (type == ZMQ_SUB) socket.set(zmq::sockopt::subscribe, "");
  socket.connect(endpoint);
  return socket;
}

std::vector<zmq::message_t> receive(zmq::socket_t& socket) {
  std::vector<zmq::message_t> frames;
  do {
    zmq::message_t frame;
    if (!socket.recv(frame)) return {};
    frames.push_back(std::move(frame));
  } while (frames.back().more());
  return frames;
}

class EventPublisherTest : public ::testing::Test {
 protected:
  ~EventPublisherTest() override { close(wake_); }

  void open(std::size_t buffer_batches = 4, int high_water_mark = 1000) {
    PublisherOptions options;
    options.endpoint = "tcp://127.0.0.1:*";
    options.replay_endpoint = "tcp://127.0.0.1:*";
    options.topic = "kv@here";
    options.buffer_batches = buffer_batches;
    options.high_water_mark = high_water_mark;
    auto publisher = EventPublisher::open(options, [this] {
      ++times_whole_;
      return whole_;
    });
    ASSERT_TRUE(publisher.has_value()) << publisher.error().text;
    publisher_ = std::move(*publisher);
  }
  void publish(std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i)
      publisher_->publish("batch " + std::to_string(i));
  }
  zmq::socket_t asker() { return connected(context_, ZMQ_DEALER, publisher_->replay_endpoint()); }
  /// vLLM's subscribers ask with a REQ socket, whose first frame is empty.
  static void ask(zmq::socket_t& socket, const std::string& sequence) {
    socket.send(zmq::message_t(), zmq::send_flags::sndmore);
    socket.send(zmq::buffer(sequence), zmq::send_flags::none);
  }
  /// Lets the publisher work until the replay has ended.
  std::vector<Numbered> replayed(zmq::socket_t& socket) {
    std::vector<Numbered> all;
    for (int tries = 0; tries < 10'000; ++tries) {
      publisher_->serve_replays(std::chrono::milliseconds(1), wake_);
      for (;;) {
        zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
        if (zmq::poll(&item, 1, std::chrono::milliseconds(0)) == 0) break;
        const auto frames = receive(socket);
        EXPECT_EQ(frames.size(), 4u) << "'', topic, sequence, batch";
        EXPECT_EQ(frames[1].to_string(), "kv@here");
        all.emplace_back(number_in(frames[2]), frames[3].to_string());
        if (all.back().first == kEnd) return all;
      }
    }
    ADD_FAILURE() << "the replay has not ended";
    return all;
  }

  int wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  zmq::context_t context_;
  std::vector<std::string> whole_{"clear and a", "b"};
  int times_whole_ = 0;
  std::unique_ptr<EventPublisher> publisher_;
};

TEST_F(EventPublisherTest, SubscribersGetTopicNumberAndBatch) {
  open();
  zmq::socket_t subscriber = connected(context_, ZMQ_SUB, publisher_->endpoint());
  // A subscription takes its time: until it is there, batches are for nobody.
  std::uint64_t missed = 0;
  for (bool is_there = false; !is_there;) {
    publisher_->publish("early");
    ++missed;
    zmq::pollitem_t item{subscriber.handle(), 0, ZMQ_POLLIN, 0};
    is_there = zmq::poll(&item, 1, std::chrono::milliseconds(10)) != 0;
    ASSERT_LT(missed, 1000u);
  }
  publisher_->publish("late");
  for (;;) {
    const auto frames = receive(subscriber);
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].to_string(), "kv@here");
    EXPECT_EQ(frames[1].size(), 8u);
    if (frames[2].to_string() == "early") continue;
    EXPECT_EQ(frames[2].to_string(), "late");
    EXPECT_EQ(number_in(frames[1]), missed);
    break;
  }
  EXPECT_EQ(publisher_->next_sequence(), missed + 1);
}

TEST_F(EventPublisherTest, ReplaysWhatIsKept) {
  open();
  publish(0, 3);
  zmq::socket_t socket = asker();
  ask(socket, big_endian(1));
  EXPECT_THAT(replayed(socket),
              ElementsAre(Numbered{1, "batch 1"}, Numbered{2, "batch 2"}, Numbered{kEnd, ""}));
  ask(socket, big_endian(0));
  EXPECT_EQ(replayed(socket).size(), 4u) << "the same subscriber again";
  EXPECT_EQ(times_whole_, 0);
}

TEST_F(EventPublisherTest, WhoMissesNothingGetsTheEndAlone) {
  open();
  publish(0, 3);
  zmq::socket_t socket = asker();
  for (const std::uint64_t from : {3ull, 4ull, 1ull << 40}) {
    ask(socket, big_endian(from));
    EXPECT_THAT(replayed(socket), ElementsAre(Numbered{kEnd, ""})) << from;
  }
}

TEST_F(EventPublisherTest, WhoMissesMoreThanIsKeptGetsTheWholeContent) {
  open();
  publish(0, 10);  // 6 to 9 are kept
  zmq::socket_t socket = asker();
  ask(socket, big_endian(6));
  EXPECT_EQ(replayed(socket).size(), 5u);
  EXPECT_EQ(times_whole_, 0);
  ask(socket, big_endian(5));
  EXPECT_THAT(replayed(socket),
              ElementsAre(Numbered{8, "clear and a"}, Numbered{9, "b"}, Numbered{kEnd, ""}))
      << "the next batch that is published, 10, follows";
  ask(socket, big_endian(kEnd));
  EXPECT_EQ(replayed(socket).size(), 3u);
  EXPECT_EQ(times_whole_, 1) << "it has not changed";
  publish(10, 1);
  ask(socket, big_endian(0));
  EXPECT_EQ(replayed(socket).size(), 3u);
  EXPECT_EQ(times_whole_, 2);
}

TEST_F(EventPublisherTest, AWholeContentOfMoreBatchesThanEverWereHasNumbersToo) {
  open(1);
  publish(0, 2);
  whole_ = {"a", "b", "c", "d"};
  zmq::socket_t socket = asker();
  ask(socket, big_endian(0));
  const auto all = replayed(socket);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[3], (Numbered{1, "d"})) << "never a number that is still to come";
}

TEST_F(EventPublisherTest, TheBufferIsBoundedInBytes) {
  PublisherOptions options;
  options.endpoint = options.replay_endpoint = "tcp://127.0.0.1:*";
  options.topic = "kv@here";
  options.buffer_bytes = 100;
  publisher_ = EventPublisher::open(options, [this] { return whole_; }).value();
  for (int i = 0; i < 5; ++i) publisher_->publish(std::string(40, 'x'));
  zmq::socket_t socket = asker();
  ask(socket, big_endian(3));
  EXPECT_EQ(replayed(socket)[0].second, std::string(40, 'x'));
  ask(socket, big_endian(2));
  EXPECT_EQ(replayed(socket)[0].second, "clear and a");
}

TEST_F(EventPublisherTest, WhatIsNoRequestIsNotAnswered) {
  open();
  publish(0, 1);
  zmq::socket_t socket = asker();
  ask(socket, "seven b");
  ask(socket, "");
  socket.send(zmq::buffer(big_endian(0)), zmq::send_flags::none);  // no empty frame
  for (int i = 0; i < 20; ++i)
    socket.send(zmq::str_buffer("x"), i == 19 ? zmq::send_flags::none : zmq::send_flags::sndmore);
  ask(socket, big_endian(0));
  EXPECT_THAT(replayed(socket), ElementsAre(Numbered{0, "batch 0"}, Numbered{kEnd, ""}))
      << "the last one only";
}

TEST_F(EventPublisherTest, WhoLeavesOrDoesNotReadKeepsNobodyWaiting) {
  open(10'000);
  const std::string large(10'000, 'x');
  for (int i = 0; i < 5000; ++i) publisher_->publish(large);
  std::optional<zmq::socket_t> silent(asker());
  {
    zmq::socket_t gone = asker();
    ask(gone, big_endian(0));
    publisher_->serve_replays(std::chrono::milliseconds(20), wake_);
  }
  ask(*silent, big_endian(0));
  publisher_->serve_replays(std::chrono::milliseconds(20), wake_);
  zmq::socket_t other = asker();
  ask(other, big_endian(4998));
  EXPECT_EQ(replayed(other).size(), 3u);
  EXPECT_EQ(replayed(*silent).size(), 5001u) << "it reads on, and loses nothing";
}

TEST_F(EventPublisherTest, AWakeEndsTheWait) {
  open();
  ASSERT_EQ(eventfd_write(wake_, 1), 0);
  publisher_->serve_replays(std::chrono::hours(1), wake_);
}

TEST_F(EventPublisherTest, EndpointsThatCannotBeOpenedAreNamed) {
  open();
  PublisherOptions options;
  options.endpoint = publisher_->endpoint();
  const auto taken = EventPublisher::open(options, {});
  ASSERT_FALSE(taken.has_value());
  EXPECT_THAT(taken.error().text, HasSubstr("--endpoint '" + options.endpoint + "': Address"));
  options.endpoint = "tcp://127.0.0.1:*";
  options.replay_endpoint = "nonsense";
  const auto wrong = EventPublisher::open(options, {});
  ASSERT_FALSE(wrong.has_value());
  EXPECT_THAT(wrong.error().text, HasSubstr("--replay-endpoint 'nonsense'"));
  EXPECT_THAT(wrong.error().text, HasSubstr("tcp://ADDRESS:PORT"));
}

}  // namespace
}  // namespace kvhive::testing
