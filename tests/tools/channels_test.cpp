#include "tools/keeper/channels/channels.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/check.hpp"
#include "tests/support/channel_memory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBytes = kLeastChannelBytes;
constexpr DomainId kDomain{7};
constexpr ChannelOwner kOwner{kDomain, 1000, true};
const MachineMemory kRoom{64 * kBytes, 64 * kBytes, "the machine"};

struct Told {
  int engine;
  MessageType type;
  std::uint64_t channel;
  friend bool operator==(const Told&, const Told&) = default;
  friend void PrintTo(const Told& told, std::ostream* out) {
    *out << "engine " << told.engine << " message " << std::uint32_t(told.type) << " channel "
         << told.channel;
  }
};

/// The channel table, with engines that record the messages to them, or have a full queue (deaf).
class ChannelsTest : public ::testing::Test, public EngineLine {
 protected:
  Expected<void> open(EngineKey engine, const ChannelOpen& message,
                      const std::vector<int>& fds) override {
    if (deaf_.count(engine) != 0) return failure(Errc::os_error, "queue full");
    said_.push_back({engine, MessageType::channel_open, message.channel});
    fds_.push_back(fds);
    domains_.push_back(message.domain);
    return {};
  }
  Expected<void> close(EngineKey engine, const ChannelClose& message) override {
    if (deaf_.count(engine) != 0) return failure(Errc::os_error, "queue full");
    said_.push_back({engine, MessageType::channel_close, message.channel});
    return {};
  }
  Expected<void> tell_of_death(EngineKey engine) override {
    if (deaf_.count(engine) != 0) return failure(Errc::os_error, "queue full");
    said_.push_back({engine, MessageType::engine_died, 0});
    return {};
  }
  Expected<void> tell_known(EngineKey engine, const std::string& channels) override {
    if (deaf_.count(engine) != 0) return failure(Errc::os_error, "queue full");
    known_[engine] = channels;
    return {};
  }
  std::uint64_t create(std::uint32_t wanted = kAnyEngine) {
    const std::uint64_t id = channels_.reserve(kBytes, wanted, kOwner, kRoom).value();
    created_ = complete(id);
    return id;
  }
  Channels::Created complete(std::uint64_t id) {
    auto created = channels_.complete(id, make_channel_memory(channels_.find(id)->bytes)).value();
    serve(channels_, id, created);
    return created;
  }
  /// As if its client had sealed its requests, and they were pinned.
  static void serve(Channels& channels, std::uint64_t id, const Channels::Created& created) {
    KV_CHECK(seal_against_new_writers(created.requests.get(), "requests"));
    KV_CHECK(channels.sealed(id));
    channels.pinned(id);
  }
  static Told opened(int engine, std::uint64_t channel) {
    return {engine, MessageType::channel_open, channel};
  }
  static Told closed(int engine, std::uint64_t channel) {
    return {engine, MessageType::channel_close, channel};
  }
  static Told told_of_death(int engine) { return {engine, MessageType::engine_died, 0}; }
  /// The messages to engines since the last call.
  std::vector<Told> said() { return std::exchange(said_, {}); }

  std::set<int> deaf_;
  std::map<int, std::string> known_;  ///< the channels that an engine was told are all
  std::vector<Told> said_;
  std::vector<std::vector<int>> fds_;
  std::vector<DomainId> domains_;
  Channels channels_{{.of_all = 4 * kBytes, .of_domain = 4 * kBytes, .of_user = 4 * kBytes}};
  std::optional<Channels::Created> created_;  ///< what create() has made last
};

/// A successor's table: what is written down, and no more.
TEST_F(ChannelsTest, ASuccessorTellsEnginesAllAgainAndGivesThemWhatTheyWereNotGiven) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  const std::uint64_t first = create();
  EXPECT_TRUE(channels_.tell_engines(*this));
  deaf_ = {10};
  const std::uint64_t second = create();
  const std::uint64_t third = create();
  EXPECT_FALSE(channels_.tell_engines(*this));
  (void)said();
  Channels next;
  next.set_next_id(channels_.next_id());
  next.add_engine(10, 0, ProcessSlot{0});
  for (const std::uint64_t id : {first, second}) {
    const ChannelRow row = *channels_.row_of(id);
    next.restore(row);
    const ChannelRow again = *next.row_of(id);
    EXPECT_EQ(std::memcmp(&row, &again, sizeof row), 0) << "the row of the row";
  }
  next.tell_all_again();
  deaf_ = {};
  EXPECT_TRUE(next.tell_engines(*this));
  EXPECT_EQ(known_[10], "[" + std::to_string(first) + "," + std::to_string(second) + "]");
  EXPECT_THAT(said(), ElementsAre(told_of_death(10), opened(10, second)));
  EXPECT_GT(next.next_id(), third);
  // An earlier keeper may have given it to the engine and not noted it.
  next.add_engine(11, 1, ProcessSlot{1});
  (void)next.close(first);
  EXPECT_TRUE(next.tell_engines(*this));
  EXPECT_THAT(said(), ::testing::Contains(closed(11, first)));
}

TEST_F(ChannelsTest, AreForTheEnginesOfTheirModel) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  channels_.add_engine(11, 1, ProcessSlot{1}, ModelId{1});
  const std::uint64_t first = create();
  const std::uint64_t second =
      channels_.reserve(kBytes, kAnyEngine, kOwner, kRoom, ModelId{1}).value();
  complete(second);
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(10, first), opened(11, second)));
  EXPECT_EQ(channels_.row_of(second)->model, 1);
  channels_.add_engine(12, 2, ProcessSlot{2}, ModelId{1});
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(12, second)));
}

TEST_F(ChannelsTest, WhatARowNamesIsOpenUntilTheRowIsGone) {
  const std::uint64_t id = create();
  const ChannelRow row = *channels_.row_of(id);
  const auto are_open = [&row] {
    for (const int fd : {row.requests, row.answers, row.engine_bell, row.client_bell,
                         row.clients_requests, row.clients_bell})
      if (fcntl(fd, F_GETFD) < 0) return false;
    return true;
  };
  channels_.taken(id);
  EXPECT_TRUE(are_open());
  const auto memory = channels_.close(id);
  EXPECT_TRUE(are_open());
  EXPECT_EQ(channels_.take_changed(), std::set<std::uint64_t>{id});
  EXPECT_FALSE(channels_.row_of(id));
  (void)channels_.take_dropped();
  EXPECT_FALSE(are_open()) << "the row is gone, and what only the row kept open";
}

TEST_F(ChannelsTest, AChannelWaitsForTheFirstEngine) {
  const std::uint64_t id = create();
  EXPECT_TRUE(channels_.tell_engines(*this)) << "without engines, no engine's queue is full";
  EXPECT_THAT(channels_.find(id)->engines, IsEmpty());
  EXPECT_THAT(said(), IsEmpty());
  channels_.add_engine(10, 0, ProcessSlot{0});
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(channels_.find(id)->engines, ElementsAre(10));
  EXPECT_THAT(said(), ElementsAre(opened(10, id)));
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), IsEmpty()) << "the engine was told twice";
}

TEST_F(ChannelsTest, AnEngineGetsMemoryAndDoorbellOfTheSizeTheClientWasTold) {
  const auto id = channels_.reserve(kBytes + 1, kAnyEngine, kOwner, kRoom);
  ASSERT_TRUE(id.has_value());
  const auto created = complete(*id);
  EXPECT_EQ(created.bytes, kBytes + 4096) << "whole pages";
  channels_.add_engine(10, 0, ProcessSlot{0});
  (void)channels_.tell_engines(*this);
  ASSERT_EQ(fds_.size(), 1u);
  ASSERT_EQ(fds_[0].size(), 4u);
  EXPECT_EQ(fds_[0][2], created.engine_bell);
  const auto file_of = [](int fd) {
    struct stat status {};
    KV_CHECK(fstat(fd, &status) == 0);
    return std::pair(status.st_ino, static_cast<std::size_t>(status.st_size));
  };
  const auto may_write = [](int fd) { return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR; };
  const int requests = created.requests.get(), answers = created.answers.get();
  EXPECT_EQ(file_of(fds_[0][0]), file_of(requests));
  EXPECT_EQ(file_of(fds_[0][1]), file_of(answers));
  EXPECT_EQ(file_of(requests).second, created.bytes);
  EXPECT_EQ(file_of(answers).second, created.bytes);
  EXPECT_TRUE(may_write(requests)) << "the client writes its requests";
  EXPECT_FALSE(may_write(fds_[0][0])) << "engines only read them";
  EXPECT_TRUE(may_write(fds_[0][1])) << "engines write the answers";
  EXPECT_FALSE(may_write(answers)) << "the client only reads them";
}

TEST_F(ChannelsTest, AClientIsToldWhichEnginesServeItOrThatNoneDoes) {
  channels_.add_engine(10, 3, ProcessSlot{0});
  channels_.add_engine(15, 4, ProcessSlot{5});
  create();
  (void)channels_.tell_engines(*this);
  const MappedMemory answers =
      MappedMemory::map(created_->answers.get(), created_->bytes, Access::read_only, kAnswersName)
          .value();
  const auto serving = [&] {
    ChannelHeader header;
    std::memcpy(&header, answers.data(), sizeof header);
    return std::pair(header.engine, header.engine_slots);
  };
  EXPECT_EQ(serving(), std::pair(3u, 0b100001u));
  channels_.remove_engine(10);
  EXPECT_EQ(serving(), std::pair(4u, 0b100000u));
  channels_.remove_engine(15);
  EXPECT_EQ(serving(), std::pair(kNoEngine, 0u));
}

TEST_F(ChannelsTest, EveryEngineGetsEveryChannelOnce) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  channels_.add_engine(11, 1, ProcessSlot{1});
  const std::uint64_t first = create();
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(10, first), opened(11, first)));
  channels_.add_engine(12, 2, ProcessSlot{2});
  const std::uint64_t second = create();
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(10, second), opened(11, second), opened(12, first),
                                  opened(12, second)));
  EXPECT_EQ(channels_.load_of(10), 2u);
  EXPECT_EQ(channels_.load_of(12), 2u);
}

TEST_F(ChannelsTest, AnEngineThatDoesNotAnswerKeepsNoChannelFromOthers) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  channels_.add_engine(11, 1, ProcessSlot{1});
  for (int i = 0; i < 3; ++i) {
    create();
    EXPECT_TRUE(channels_.tell_engines(*this));
    EXPECT_FALSE(channels_.answered(11)) << "it could have had more";
  }
  EXPECT_EQ(channels_.load_of(11), 3u);
  EXPECT_TRUE(channels_.has_unanswered());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(channels_.answered(10));
  EXPECT_FALSE(channels_.has_unanswered());
}

TEST_F(ChannelsTest, FewChannelsAreGivenToAnEngineBeforeItAnswers) {
  Channels many({.of_all = 64 * kBytes, .of_domain = 64 * kBytes, .of_user = 64 * kBytes});
  many.add_engine(10, 0, ProcessSlot{0});
  const MachineMemory room{64 * kBytes, 64 * kBytes, "the machine"};
  for (std::size_t i = 0; i <= Channels::kMostUnanswered; ++i) {
    const auto id = many.reserve(kBytes, kAnyEngine, kOwner, room);
    serve(many, *id, many.complete(*id, make_channel_memory(kBytes)).value());
  }
  EXPECT_TRUE(many.tell_engines(*this)) << "its answer will have it told more";
  EXPECT_EQ(many.load_of(10), Channels::kMostUnanswered);
  EXPECT_TRUE(many.answered(10)) << "one waits for it";
  EXPECT_TRUE(many.tell_engines(*this));
}

TEST_F(ChannelsTest, AChannelThatWantsAnEngineWaitsForItEvenIfItIsBusyOrAbsent) {
  channels_.add_engine(11, 1, ProcessSlot{1});
  const std::uint64_t first = create(1), second = create(1), absent = create(0);
  channels_.add_engine(12, 2, ProcessSlot{2});
  (void)channels_.tell_engines(*this);
  EXPECT_THAT(said(), ElementsAre(opened(11, first), opened(11, second)));
  channels_.add_engine(10, 0, ProcessSlot{0});
  (void)channels_.tell_engines(*this);
  EXPECT_THAT(said(), ElementsAre(opened(10, absent)));
}

TEST_F(ChannelsTest, OthersAreToldOfADeathAndHaveItsChannelsAlready) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  channels_.add_engine(11, 1, ProcessSlot{1});
  const std::uint64_t pinned = create(0), shared = create();
  (void)channels_.tell_engines(*this);
  EXPECT_THAT(said(), ElementsAre(opened(10, pinned), opened(10, shared), opened(11, shared)));
  const Channels::Left left = channels_.remove_engine(10);
  EXPECT_EQ(left.had, 2u);
  EXPECT_EQ(left.waiting, 1u);
  deaf_ = {11};
  EXPECT_FALSE(channels_.tell_engines(*this));
  deaf_ = {};
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(told_of_death(11)));
  EXPECT_THAT(channels_.find(pinned)->engines, IsEmpty());
  channels_.add_engine(12, 0, ProcessSlot{0});  // the replacement has the same number, another key
  (void)channels_.tell_engines(*this);
  EXPECT_THAT(said(), ElementsAre(opened(12, pinned), opened(12, shared)));
}

TEST_F(ChannelsTest, EveryEngineThatGetsAChannelIsToldItsDomain) {
  create();
  channels_.add_engine(10, 0, ProcessSlot{0});
  channels_.add_engine(11, 1, ProcessSlot{1});
  (void)channels_.tell_engines(*this);
  EXPECT_THAT(domains_, ElementsAre(kDomain, kDomain));
}

TEST_F(ChannelsTest, AnEngineWhoseQueueWasFullIsToldAgainAndKeepsNothingFromOthers) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  channels_.add_engine(11, 1, ProcessSlot{1});
  deaf_ = {10};
  const std::uint64_t id = create();
  EXPECT_FALSE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(11, id)));
  EXPECT_FALSE(channels_.tell_engines(*this));
  deaf_ = {};
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(10, id)));
}

/// One may lack descriptors. Its client is refused only if nobody can serve it.
TEST_F(ChannelsTest, AChannelThatAnEngineRefusesIsServedByTheOthers) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  channels_.add_engine(11, 1, ProcessSlot{1});
  const std::uint64_t id = create();
  (void)channels_.tell_engines(*this);
  said();
  EXPECT_TRUE(channels_.take_back(id, 10));
  EXPECT_THAT(channels_.find(id)->engines, ElementsAre(11));
  EXPECT_EQ(channels_.load_of(10), 0u);
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), IsEmpty()) << "it is not offered again";
  EXPECT_FALSE(channels_.take_back(id, 11));
  EXPECT_TRUE(channels_.take_back(id, 11)) << "it has not got it any more";
  (void)channels_.close(id);
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(ChannelsTest, AnEngineIsToldOfClosedChannelsAsSoonAsItListens) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  const std::uint64_t first = create(), second = create(), waiting = create(5);
  (void)channels_.tell_engines(*this);
  said();
  deaf_ = {10};
  for (const std::uint64_t id : {first, second, waiting}) {
    EXPECT_TRUE(channels_.close(id).has_value());
    EXPECT_FALSE(channels_.find(id).has_value());
    EXPECT_FALSE(channels_.close(id).has_value()) << "twice";
  }
  EXPECT_FALSE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), IsEmpty());
  deaf_ = {};
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(closed(10, first), closed(10, second)))
      << "no engine had the last";
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(ChannelsTest, AnEngineThatIsGoneIsToldNothing) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  const std::uint64_t id = create();
  (void)channels_.tell_engines(*this);
  said();
  (void)channels_.close(id);
  (void)channels_.remove_engine(10);
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(ChannelsTest, AChannelWaitsUntilItsMemoryIsMadeSealedAndPinned) {
  channels_.add_engine(10, 0, ProcessSlot{0});
  const auto expect_wait = [&] {
    EXPECT_TRUE(channels_.tell_engines(*this));
    EXPECT_THAT(said(), IsEmpty());
  };
  const std::uint64_t id = channels_.reserve(kBytes, kAnyEngine, kOwner, kRoom).value();
  EXPECT_EQ(channels_.bytes_to_make(), kBytes);
  EXPECT_FALSE(channels_.sealed(id)) << "there is nothing to seal yet";
  expect_wait();
  const auto created = channels_.complete(id, make_channel_memory(kBytes)).value();
  EXPECT_EQ(channels_.bytes_to_make(), 0u);
  EXPECT_FALSE(channels_.sealed(id)) << "it is not";
  expect_wait();
  ASSERT_TRUE(seal_against_new_writers(created.requests.get(), "requests"));
  EXPECT_TRUE(channels_.sealed(id));
  EXPECT_FALSE(channels_.sealed(id)) << "it was told so already";
  expect_wait();
  channels_.pinned(id);
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(10, id)));
  const std::uint64_t left = channels_.reserve(kBytes, kAnyEngine, kOwner, kRoom).value();
  EXPECT_FALSE(channels_.close(left).value().answers) << "there is no memory to free";
}

TEST_F(ChannelsTest, AnEngineThatJoinsGetsNoChannelThatIsNotPinned) {
  const std::uint64_t id = channels_.reserve(kBytes, kAnyEngine, kOwner, kRoom).value();
  const auto created = channels_.complete(id, make_channel_memory(kBytes)).value();
  channels_.add_engine(10, 0, ProcessSlot{0});
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), IsEmpty());
  serve(channels_, id, created);
  EXPECT_TRUE(channels_.tell_engines(*this));
  EXPECT_THAT(said(), ElementsAre(opened(10, id)));
}

TEST_F(ChannelsTest, TheChannelsOfAllClientsHaveAQuota) {
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(create());
  const auto refused = channels_.reserve(kBytes, kAnyEngine, kOwner, kRoom);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text, HasSubstr("the daemon grants 4.00 MiB"));
  EXPECT_THAT(refused.error().text, HasSubstr("--channel-bytes"));
  (void)channels_.close(ids[2]);
  EXPECT_FALSE(channels_.reserve(kBytes, kAnyEngine, kOwner, kRoom).has_value())
      << "its memory is not freed yet";
  channels_.freed(ids[2]);
  EXPECT_TRUE(channels_.reserve(kBytes, kAnyEngine, kOwner, kRoom).has_value());
}

TEST_F(ChannelsTest, TheChannelsOfOneDomainHaveAQuota) {
  Channels channels({.of_all = 4 * kBytes, .of_domain = 2 * kBytes, .of_user = 4 * kBytes});
  const auto reserve = [&](std::uint16_t domain) {
    return channels.reserve(kBytes, kAnyEngine, {DomainId{domain}, 1000, true}, kRoom);
  };
  const auto first = reserve(1);
  EXPECT_TRUE(first && reserve(1));
  const auto refused = reserve(1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text, HasSubstr("would have 3.00 MiB, channel-bytes-per-domain "
                                              "grants 2.00 MiB"));
  EXPECT_TRUE(reserve(2));
  (void)channels.close(*first);
  channels.freed(*first);
  EXPECT_TRUE(reserve(1));
}

TEST_F(ChannelsTest, LargeChannelsLeaveRoomForUsualOnes) {
  constexpr std::size_t kLarge = 2 * ChannelQuota::kLarge;
  const MachineMemory machine{16 * kLarge, 16 * kLarge, "the machine"};
  Channels channels({.of_all = 4 * kLarge, .of_domain = 4 * kLarge, .of_user = 4 * kLarge});
  const auto reserve = [&](std::size_t bytes) {
    return channels.reserve(bytes, kAnyEngine, kOwner, machine);
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(reserve(kLarge));
  const auto refused = reserve(kLarge);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text,
              HasSubstr("the daemon grants 96.00 MiB to channels of more than 16.00 MiB"));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(reserve(ChannelQuota::kLarge));
  EXPECT_FALSE(reserve(kBytes)) << "now all is taken";
}

TEST_F(ChannelsTest, AStrangersChannelsHaveAQuota) {
  Channels channels({.of_all = 8 * kBytes, .of_domain = 8 * kBytes, .of_user = 2 * kBytes});
  const auto reserve = [&](uid_t user, bool is_limited) {
    return channels.reserve(kBytes, kAnyEngine, {kDomain, user, is_limited}, kRoom);
  };
  EXPECT_TRUE(reserve(7, true) && reserve(7, true));
  const auto refused = reserve(7, true);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::pool_exhausted);
  EXPECT_THAT(refused.error().text,
              HasSubstr("user 7 would have 3.00 MiB, the daemon grants a user "
                        "2.00 MiB"));
  EXPECT_TRUE(reserve(8, true));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(reserve(0, false)) << "the daemon's own user";
}

TEST_F(ChannelsTest, AStrangersChannelsHaveAShareOfWhatMemoryThereIs) {
  MachineMemory machine{64 * kBytes, 16 * kBytes, "the cgroup"};
  Channels channels;
  const auto reserve = [&](uid_t user) {
    return channels.reserve(kBytes, kAnyEngine, {kDomain, user, true}, machine);
  };
  for (int i = 0; i < 4; ++i) {
    const auto id = reserve(7);
    ASSERT_TRUE(id.has_value());
    ASSERT_TRUE(channels.complete(*id, make_channel_memory(kBytes)).has_value());
    machine.available -= kBytes;
  }
  const auto refused = reserve(7);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("the daemon grants a user 4.00 MiB"));
  EXPECT_TRUE(reserve(8));
}

TEST_F(ChannelsTest, AChannelAboveTheAvailableMemoryIsRefusedAndTheLimitNamed) {
  MachineMemory machine{8 * kBytes, 2 * kBytes, "cgroup /a (memory.max)"};
  constexpr ChannelOwner kOwnUser{kDomain, 1000, false};
  Channels channels({.of_all = 8 * kBytes, .of_domain = 8 * kBytes, .of_user = 8 * kBytes});
  EXPECT_TRUE(channels.reserve(2 * kBytes, kAnyEngine, kOwnUser, machine).has_value());
  const auto refused = channels.reserve(2 * kBytes + 1, kAnyEngine, kOwnUser, machine);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::out_of_memory);
  EXPECT_THAT(refused.error().text, HasSubstr("cgroup /a (memory.max) has 2.00 MiB available"));
  machine.available = 3 * kBytes;
  EXPECT_TRUE(channels.reserve(2 * kBytes + 1, kAnyEngine, kOwnUser, machine).has_value());
}

TEST_F(ChannelsTest, SizesOutOfBoundsAreRefused) {
  for (const std::size_t bytes :
       {std::size_t{0}, kBytes - 1, kMostChannelBytes + 1, ~std::size_t{0}}) {
    const auto refused = channels_.reserve(bytes, kAnyEngine, kOwner, kRoom);
    ASSERT_FALSE(refused.has_value()) << bytes;
    EXPECT_EQ(refused.error().code, Errc::bad_argument);
    EXPECT_THAT(refused.error().text, HasSubstr("out of bounds"));
  }
}

}  // namespace
}  // namespace kvhive::testing
