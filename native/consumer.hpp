// Consuming: claim the oldest message that no consumer has, and settle it.
//
// Returned messages are older than those that were never claimed, so they go first. They are found by looking through
// the slots, and a look is worth it when the count of returns has changed. The others are claimed in the order of the
// ring. A consumer remembers how far it is there; the tail in the header tells those who come later where to begin.
//
// To claim is to exchange the claim: the message is mine until I settle it, and as long as it is, no other consumer
// writes to its slot. Who reads on afterwards sets its bit before it says so, and clears it when it is done. With a
// lease, which can end a claim while its owner lives, the bit is set before the claim, and cleared if that is lost; who
// copies the message at once needs none, but then the copy counts only if the claim is still there afterwards.
// A delivery is counted with the claim, but what is claimed ahead when it is handed out: who dies has not delivered it.
#pragma once

#include <algorithm>

#include "recovery.hpp"
#include "slots.hpp"
#include "taken.hpp"

namespace hawser {

struct Claimed : Taken {
  uint64_t claim = 0;  // the word by which it is ours
  bool redelivered = false;
};

// The last of `claims`, which goes unless it stays. A claim is written where it stays: to copy words that were written a
// moment ago makes the processor wait.
template <class Container>
class LastClaim {
 public:
  explicit LastClaim(Container& claims) : claims_(claims) { claims_.emplace_back(); }
  ~LastClaim() {
    if (!stays_) claims_.pop_back();
  }
  LastClaim(const LastClaim&) = delete;
  Claimed& claimed() const { return claims_.back(); }
  void stay() { stays_ = true; }

 private:
  Container& claims_;
  bool stays_ = false;
};

// A message that may be claimed: its claim was `word`.
struct Candidate {
  uint64_t sequence;
  uint32_t slot;
  uint64_t word;
};

class Consumer {
 public:
  struct Options {
    uint32_t max_held = 0;
    bool reserved = false;       // the only consumer: its deliveries are not counted
    bool keeps_letters = false;  // the queue is its own dead-letter queue: nothing in it can die
  };

  Consumer(const Memory& memory, Membership membership, Options options)
      : memory_(memory),
        membership_(std::move(membership)),
        options_(options),
        bit_(membership_.index - memory.layout.settings.max_publishers),
        mask_(uint64_t{1} << bit_ % 64),
        seen_returns_(memory.header().returns.word.load_ordered() - 1) {
    trace(memory_, [&] { return TraceEvent{TraceKind::subscribe, 0, membership_.owner(), kTracedSubscriber}; });
  }

  const Memory& memory() const { return memory_; }
  const Membership& membership() const { return membership_; }
  const Options& options() const { return options_; }
  uint32_t held() const { return held_; }
  uint32_t free_places() const { return options_.max_held - std::min(held_, options_.max_held); }
  bool closing() const { return closing_; }
  uint32_t bit() const { return bit_; }

  // Claim the oldest message there is, and keep its slot. settle() must follow before the caller returns.
  enum class Counted { now, when_handed_out };
  bool try_claim(Claimed& claimed, Counted counted = Counted::now) {
    require_room();
    for (Candidate found; find(found);)
      if (refer(found, claimed, counted)) return true;
    return false;
  }

  // What was claimed ahead is delivered from here on. False: it was taken away meanwhile.
  bool hand_out(Claimed& claimed) {
    const uint64_t counted = counted_once_more(claimed.claim);
    Word& claim = memory_.claim(claimed.slot);
    if (memory_.layout.settings.lease_ns) [[unlikely]] {
      if (!claim.exchange_if(claimed.claim, counted)) return false;
    } else if (claim.load_relaxed() == claimed.claim) [[likely]] {
      claim.store_release(counted);  // no other changes the claim of a living consumer
    } else {
      memory_.corrupt("the claim of message " + std::to_string(claimed.sequence) + " is damaged");
    }
    claimed.claim = counted;
    return true;
  }

  // Claim the oldest message and copy it. `room(copyable)` says where its parts go, maybe more than once; a null payload
  // leaves the message for try_claim.
  enum class Copy { nothing, copied, left };
  template <class Room>
  Copy try_claim_copy(const Room& room, Claimed& claimed) {
    require_room();
    for (Candidate found; find(found);) {
      if (!describe(found, claimed)) continue;
      const CopyPlaces to = room(Copyable{claimed.sequence, claimed.payload, claimed.metadata, claimed.timestamp_ns});
      if (!to.payload) {
        if (claim_state(found.word) == ClaimState::ready) keep_for_later(found);
        return Copy::left;
      }
      if (!exchange(found, claimed)) continue;
      const uint8_t* from = memory_.readable + memory_.payload_at(found.slot);
      if (!memory_.layout.settings.lease_ns) {
        std::memcpy(to.payload, from, claimed.payload);
        if (to.metadata) std::memcpy(to.metadata, from + claimed.payload, claimed.metadata);
        return Copy::copied;
      }
      copy_racing(to.payload, from, claimed.payload);
      if (to.metadata) copy_racing(to.metadata, from + claimed.payload, claimed.metadata);
      std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the borrower's fence
      if (memory_.claim(found.slot).load_ordered() == claimed.claim) return Copy::copied;
      let_go_of_copy();
    }
    return Copy::nothing;
  }

  // The quick way for many: claims messages that were never claimed, in the order of the ring, up to the last look ahead and
  // as long as everything is ordinary: nothing came back, and no lease can end a claim. The steps are those of
  // try_claim; what is not ordinary is left to it. They are counted when they are handed out.
  template <class Claims>
  void claim_run_ahead(uint64_t count, Claims& claims) {
    const auto claim = [&](const Candidate& found, Claimed& claimed) {
      prefetch();
      return refer(found, claimed, Counted::when_handed_out);
    };
    run(count, claims, claim, [](const Claimed&) {});
  }

  // The same with copies, which are counted at once, as try_claim_copy makes them. `room(bytes)` says where a payload goes; null leaves it.
  // `keep()` follows each that is copied and in `claims`.
  template <class Room, class Keep>
  void claim_run(uint64_t count, std::vector<Claimed>& claims, const Room& room, const Keep& keep) {
    char* to = nullptr;
    bool scattered = false;
    const auto claim = [&](const Candidate& found, Claimed& claimed) {
      if (found.sequence % kPrefetchDistance == 0) scattered = !is_followed(found);
      if (scattered) prefetch();
      to = describe(found, claimed) ? room(claimed.payload) : nullptr;
      return to && exchange(found, claimed);
    };
    run(count, claims, claim, [&](const Claimed& claimed) {
      std::memcpy(to, memory_.readable + memory_.payload_at(claimed.slot), claimed.payload);
      keep();
    });
  }

  // What became of a message. False: the claim was taken away, and nothing has changed. The message's own bytes are
  // let go of by let_go(), before or afterwards, or by let_go_of_copy().
  bool accept(const Claimed& claimed) {
    const uint64_t done = claim_as(claimed.claim, ClaimState::done);
    if (!planted(Canary::accept_by_store)) return end_claim(claimed, done);
    memory_.claim(claimed.slot).store_ordered(done);
    return true;
  }
  bool release(const Claimed& claimed) { return give_back(claimed, returned_claim(claimed.claim, memory_.max_deliveries)); }
  // As if it had never been claimed: what was counted, and what is still ahead.
  bool release_uncounted(const Claimed& claimed) {
    return give_back(claimed, claim_as(options_.reserved ? claimed.claim : delivered_once_less(claimed.claim), ClaimState::ready));
  }
  bool release_ahead(const Claimed& claimed) { return give_back(claimed, claim_as(claimed.claim, ClaimState::ready)); }
  bool reject(const Claimed& claimed) {
    const ClaimState end = options_.keeps_letters ? ClaimState::ready : ClaimState::doomed;
    return give_back(claimed, claim_as(claimed.claim, end));
  }

  // Stop reading a slot. False: the bit was gone, which only damage can do.
  bool let_go(uint32_t slot) {
    held_--;
    return stop_reading(slot);
  }
  void let_go_of_copy() { held_--; }
  void keep_copy() { held_++; }  // the claim outlives the message that is about to be let go of

  // After one or several claims: producers may use their places in the ring. The tail need not be exact, and its cache
  // line is shared by all.
  void settle() {
    if (left_) return;
    Word& tail = memory_.header().tail.word;
    const uint64_t seen = tail.load_relaxed();
    if (fresh_ >= seen + kTailBehind) tail.exchange_if(seen, fresh_);
    memory_.entry(membership_.index).count.store_relaxed(count_);
    wake_producers(static_cast<uint32_t>(count_ - std::exchange(settled_, count_)));
  }

  // After places in the ring or slots became free. A producer that is woken for each of them does not get far before
  // it sleeps again: it is woken for some at once, or if the last time is a while ago. One that is not woken looks by
  // itself, soon after it fell asleep (Publisher::wait_for_space).
  void wake_producers(uint32_t places = 1) {
    Signal& space = memory_.header().space;
    if (!anybody_waits(space, memory_.layout.publisher_words)) [[likely]] return;
    freed_ = freed_ + places;
    const int64_t now = coarse_now();
    if (freed_ < memory_.layout.ring / kWakesALap && now == woken_at_) return;
    freed_ = 0;
    woken_at_ = now;
    wake_waiters(space, memory_.layout.publisher_words);
  }
  void wake_consumers(uint32_t count) const { wake_waiters(memory_.header().samples, memory_.layout.bit_words, count); }

  // Look through all slots: for messages that came back, for dying ones, and for leases that are over.
  void look_around() {
    if (memory_.layout.settings.lease_ns) end_leases(monotonic_now());
    scan();
  }

  // There are messages that must go to the dead letters, as far as the last look has shown; asking forgets it.
  bool found_dying() { return std::exchange(found_dying_, false); }
  bool others_hold() const { return others_hold_; }  // another consumer did at the last look

  // One slice of waiting until there may be a message.
  void wait_for_message(int64_t nanoseconds, int pauses = kPausesForOne) {
    if (const auto lease = static_cast<int64_t>(memory_.layout.settings.lease_ns))
      nanoseconds = std::min(nanoseconds, std::max(lease / 4, kShortestSlice));
    if (freed_ > 0) freed_ = 0, wake_waiters(memory_.header().space, memory_.layout.publisher_words);
    if (spin_until(sleepers_.luck, [&] { return ready(); }, nanoseconds, pauses)) return;
    Sleeper sleeper(memory_.header().samples, bit_, sleepers_);
    const uint32_t seen = sleeper.value();
    if (!ready()) sleeper.sleep(seen, nanoseconds);
  }
  Signal& signal() const { return memory_.header().samples; }
  Sleepers& sleepers() { return sleepers_; }

  // Whether there is something claimed ahead, which another thread may wait for.
  void tell_of_ahead(bool any) { has_ahead_.store(any, std::memory_order_relaxed); }

  // Whether a claim would find something. Changes nothing, so that a thread may wait while another one claims.
  bool ready() const {
    if (closing_ || memory_.closed()) return true;
    if (has_returned_.load(std::memory_order_relaxed) || has_ahead_.load(std::memory_order_relaxed)) return true;
    if (memory_.header().returns.word.load_ordered() != seen_returns_) return true;
    for (uint64_t next = fresh_ + 1;; next++) {
      const uint64_t word = memory_.ring(next).load_ordered();
      if (ring_tag(word) == last_lap_tag(next, memory_.layout.ring)) return false;
      if (ring_tag(word) != tag_of(next) || ring_slot(word) >= memory_.layout.slots) return true;
      if (memory_.claim(ring_slot(word)).load_ordered() == fresh_claim(next)) return true;
      if (planted(Canary::claimed_ones_are_not_passed)) return false;
    }
  }

  // Before telling a caller that there is nothing: the head must agree.
  void confirm_nothing() const {
    const uint64_t next = fresh_ + 1, head = memory_.head().load_ordered();
    const uint64_t word = memory_.ring(next).load_ordered();
    if (head >= next && ring_tag(word) == last_lap_tag(next, memory_.layout.ring))
      memory_.corrupt("the ring does not carry message " + std::to_string(next));
  }

  // How many messages of the last look ahead are beyond the last one claimed.
  uint64_t known_ahead() const { return newest_ - std::min<uint64_t>(fresh_, newest_); }
  // Whether everything is claimed that was there at the last look ahead.
  bool caught_up() const { return fresh_ >= newest_ && returned_.empty(); }
  // How many messages there are beyond the last one claimed.
  uint64_t look_ahead() {
    newest_ = next_place(memory_).head;
    return known_ahead();
  }
  // For who has caught up, before a claim. A reader at the producers' heels slows both sides down, because each line
  // that it wants is being written: with fewer than `few` messages ahead it lets some gather, if that was worth it
  // lately.
  void keep_distance(uint64_t few) {
    const uint64_t ahead = look_ahead();
    if (ahead == 0 || ahead >= few || !distance_.worth_it()) return;
    relax_for(kPausesForMany);
    distance_.learn(look_ahead() >= 2 * ahead);
  }

  // Fetch what will be claimed a few messages from now, if it is there.
  void prefetch() const {
    const uint64_t sequence = fresh_ + kPrefetchDistance, word = memory_.ring(sequence).load_relaxed();
    const uint32_t slot = ring_slot(word);
    if (ring_tag(word) != tag_of(sequence) || slot >= memory_.layout.slots) return;
    prefetch_for_writing(&memory_.slot(slot));
    __builtin_prefetch(memory_.readable + memory_.payload_at(slot), 0);
  }

  // For letters.hpp: claim a message to move it. The deliveries stay as they are.
  bool claim_to_move(const Candidate& found, ClaimState moving, Claimed& claimed) {
    if (closing_ || memory_.closed()) return false;
    claimed.claim = claim_as(found.word, ClaimState::done) | signature(moving);
    return memory_.claim(found.slot).exchange_if(found.word, claimed.claim);
  }
  // Words of the slot, read before a claim: they count if the claim was `found.word` afterwards. False: they do not
  // belong together, because the message has gone meanwhile.
  bool describe(const Candidate& found, Taken& taken) const {
    const Slot& slot = memory_.slot(found.slot);
    const uint64_t lengths = slot.lengths.load_relaxed();
    taken = {found.slot, found.sequence, payload_length(lengths), metadata_length(lengths),
             slot.timestamp_ns.load_relaxed(), slot.publisher.load_relaxed(), 0};
    const bool sound = slot.check.load_relaxed() == slot_check(lengths, taken.timestamp_ns, taken.publisher, found.sequence) &&
                       slot.sequence.load_relaxed() == found.sequence && found.sequence != 0 &&
                       taken.payload + taken.metadata <= memory_.layout.settings.slot_size;
    if (sound || planted(Canary::lengths_are_not_checked)) [[likely]] return true;
    require_gone(found);
    return false;
  }

  // Every message still held goes back now, and its holder's last word does not count; the place is given up now, or
  // with the last view.
  void close() {
    if (!closing_) {
      closing_ = true;
      if (!memory_.closed()) {
        for (uint32_t i = 0; i < memory_.layout.slots; i++) keep_bytes(i);
        return_claims(memory_, bit_, entry_word(membership_.incarnation, EntryState::active));
        wake_consumers(UINT32_MAX);
      }
    }
    if (held_ == 0 && !left_) {
      left_ = true;
      Witness witness(memory_);
      leave(memory_, membership_);
      witness.tell([&] { return TraceEvent{TraceKind::unsubscribe, 0, membership_.owner(), kTracedSubscriber}; });
    }
  }
  void abandon() { membership_.anchor.forget(); }  // in a forked child

 private:
  struct Watched {
    uint64_t word = 0;
    int64_t since = 0;
  };

  // Words that do not belong together were those of a message that has gone meanwhile; else they are damaged.
  [[gnu::noinline, gnu::cold]] void require_gone(const Candidate& found) const {
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the borrower's fence
    if (memory_.claim(found.slot).load_ordered() == found.word)
      memory_.corrupt("message " + std::to_string(found.sequence) + " is damaged");
  }

  // Whether the slots of the next messages lie one behind the other: those the processor fetches by itself.
  bool is_followed(const Candidate& found) const {
    return ring_slot(memory_.ring(found.sequence + kPrefetchDistance).load_relaxed()) == found.slot + kPrefetchDistance;
  }

  uint64_t signature(ClaimState state) const { return claim_signature(bit_, membership_.incarnation, state); }

  void require_room() {
    if (closing_) [[unlikely]] throw Error(Kind::closed, "this consumer is closed");
    if (memory_.closed()) [[unlikely]] memory_.deleted();
    require_membership(memory_, membership_);
    if (held_ >= options_.max_held)
      throw Error(Kind::full, "this consumer holds " + std::to_string(held_) +
                                  " messages, as many as max_held allows; accept, release or drop one first");
    if (memory_.layout.settings.lease_ns) [[unlikely]] end_leases(monotonic_now());
  }

  bool find(Candidate& found) { return find_returned(found) || find_fresh(found); }

  bool find_returned(Candidate& found) {
    const Word& returns = memory_.header().returns.word;
    if (returns.load_ordered() != seen_returns_) [[unlikely]] scan();  // pairs with announce_returns
    while (!returned_.empty()) {
      found = returned_.back();
      returned_.pop_back();
      has_returned_.store(!returned_.empty(), std::memory_order_relaxed);
      if (memory_.claim(found.slot).load_ordered() == found.word) return true;
    }
    return false;
  }

  // The message after the last one we had, if it is there and was never claimed, and no message came back.
  bool find_next(const Word& entry, Candidate& found) const {
    const uint64_t next = fresh_ + 1, word = entry.load_ordered();  // pairs with the producer's exchange
    if (ring_tag(word) != tag_of(next) || ring_slot(word) >= memory_.layout.slots || !returned_.empty()) return false;
    if (memory_.header().returns.word.load_ordered() != seen_returns_) return false;  // pairs with announce_returns
    found = {next, ring_slot(word), memory_.claim(ring_slot(word)).load_ordered()};
    return found.word == fresh_claim(next) || (planted(Canary::runs_claim_again) && claim_tag(found.word) == claim_tag_of(next));
  }

  // Calls `claim(found, claimed)` for one message after the other, up to the first that it or find_next leaves, then
  // `then(claimed)`, which finds it in `claims`.
  template <class Claims, class Claim, class Then>
  void run(uint64_t count, Claims& claims, const Claim& claim, const Then& then) {
    if (memory_.layout.settings.lease_ns) return;
    require_room();
    RingWalk walk(memory_, fresh_ + 1);
    for (count = std::min<uint64_t>(count, free_places()); count > 0 && fresh_ < newest_ && !memory_.closed(); count--, walk.step()) {
      Candidate found;
      if (!find_next(walk.entry(), found)) return;
      LastClaim last(claims);
      if (!claim(found, last.claimed())) return;
      last.stay();
      then(last.claimed());
    }
  }

  bool find_fresh(Candidate& found) {
    for (uint32_t passed = 1;; passed++) {
      const uint64_t next = fresh_ + 1;
      const Word& place = memory_.ring(next);
      const uint64_t word = place.load_ordered();  // pairs with the producer's exchange
      if (ring_tag(word) == last_lap_tag(next, memory_.layout.ring)) return false;
      if (ring_tag(word) != tag_of(next)) {
        skip_to_the_oldest(place, word);
        continue;
      }
      const uint32_t slot = ring_slot(word);
      if (slot >= memory_.layout.slots) memory_.corrupt("the ring names a slot that does not exist");
      found = {next, slot, memory_.claim(slot).load_ordered()};
      if (found.word == fresh_claim(next)) [[likely]] return true;
      if (planted(Canary::claimed_ones_are_not_passed)) return false;
      // It was claimed before. While the ring carries a slot its claim is of that message.
      if (claim_tag(found.word) != claim_tag_of(next) && place.load_ordered() == word) [[unlikely]]
        memory_.corrupt("the claim of message " + std::to_string(next) + " is damaged");
      fresh_ = passed % kStepsToTheTail == 0 ? std::max(next, tail()) : next;
    }
  }

  // How far consumers have come. It must be believable: no consumer would look for a message that it passes.
  uint64_t tail() const {
    const uint64_t tail = memory_.header().tail.word.load_ordered(), head = memory_.head().load_ordered();
    const uint64_t word = memory_.ring(tail).load_ordered();
    const bool carried = tail != 0 && ring_tag(word) == tag_of(tail) && ring_slot(word) < memory_.layout.slots;
    if (tail > head + 1 || (carried && memory_.claim(ring_slot(word)).load_ordered() == fresh_claim(tail)))
      memory_.corrupt("the tail passes messages that were never claimed");
    return tail;
  }

  // The ring has gone on a whole lap: whatever is overwritten was claimed.
  void skip_to_the_oldest(const Word& place, uint64_t word) {
    const uint64_t head = next_place(memory_).head, ring = memory_.layout.ring;
    const uint64_t seen = sequence_of(ring_tag(word), head);
    if (seen > head + 1) memory_.corrupt("the ring carries a message from the future");
    const uint64_t newest = std::max(head, seen), oldest = newest > ring ? newest - ring : 0;
    const bool possible = oldest > fresh_ && seen > fresh_ && memory_.layout.position(seen) == memory_.layout.position(fresh_ + 1);
    if (!possible && place.load_ordered() == word)
      memory_.corrupt("ring entry " + std::to_string(memory_.layout.position(fresh_ + 1)) + " is damaged");
    fresh_ = std::max<uint64_t>(fresh_, oldest);
  }

  bool refer(const Candidate& found, Claimed& claimed, Counted counted) {
    if (!describe(found, claimed)) return false;
    readers_[found.slot]++;
    const bool leased = memory_.layout.settings.lease_ns;
    if (leased && !planted(Canary::claim_without_bit)) [[unlikely]] keep_bytes(found.slot);
    if (!exchange(found, claimed, counted)) [[unlikely]] return stop_reading(found.slot), false;
    if (leased && planted(Canary::claim_without_bit)) keep_bytes(found.slot);
    return true;
  }

  uint64_t counted_once_more(uint64_t word) const {
    return options_.reserved && !planted(Canary::reserved_ones_are_counted) ? word : delivered_once_more(word);
  }

  bool exchange(const Candidate& found, Claimed& claimed, Counted counted = Counted::now) {
    const bool fresh = claim_state(found.word) == ClaimState::fresh;
    const uint64_t word = counted == Counted::now ? counted_once_more(found.word) : found.word;
    const uint64_t mine = claim_as(word, ClaimState::done) | signature(ClaimState::claimed);
    if (!change(claimed, found.word, mine)) return false;
    claimed.claim = mine;
    claimed.redelivered = !fresh;
    if (fresh) fresh_ = found.sequence;
    held_++;
    count_++;
    return true;
  }

  // The claim of a message of ours, or one that is about to be, from one word to another.
  bool change(const Taken& taken, uint64_t from, uint64_t to) {
    Witness witness(memory_);
    if (!memory_.claim(taken.slot).exchange_if(from, to)) return false;
    witness.tell([&] {
      return TraceEvent{kind_of_change(to), taken.sequence, membership_.owner(), taken.timestamp_ns, 0, claim_deliveries(to)};
    });
    return true;
  }

  bool end_claim(const Claimed& claimed, uint64_t word) {
    if (!planted(Canary::read_on_without_bit)) keep_bytes(claimed.slot);
    const bool ours = change(claimed, claimed.claim, word);
    if (planted(Canary::read_on_without_bit)) keep_bytes(claimed.slot);
    return ours;
  }

  bool give_back(const Claimed& claimed, uint64_t word) {
    if (!end_claim(claimed, word)) return false;
    found_dying_ |= claim_state(word) == ClaimState::doomed;
    announce_returns(memory_);  // after the claim is back
    wake_consumers(1);
    return true;
  }

  // Before a claim can end: every reader of the slot in this process has its bit. Several share it: one message can be
  // returned and claimed again while a reader still has it.
  void keep_bytes(uint32_t slot) {
    if (readers_[slot] == 0 || has_bit_[slot]) [[likely]] return;
    has_bit_[slot] = 1;
    memory_.references(slot, bit_ / 64).set_bits(mask_);  // pairs with the borrower's look
  }
  bool stop_reading(uint32_t slot) {
    if (--readers_[slot] != 0 || !std::exchange(has_bit_[slot], 0)) [[likely]] return true;
    return memory_.references(slot, bit_ / 64).clear_bits(mask_) & mask_;
  }

  void scan() {
    const uint64_t returns = memory_.header().returns.word.load_ordered();  // before the slots
    const uint64_t me = claim_owner_bits(signature(ClaimState::claimed));
    returned_.clear();
    has_returned_.store(false, std::memory_order_relaxed);
    found_dying_ = others_hold_ = false;
    for (uint32_t i = 0; i < memory_.layout.slots; i++) {
      const uint64_t word = memory_.claim(i).load_ordered();  // pairs with who gave it back
      const ClaimState state = claim_state(word);
      if (state == ClaimState::done || state == ClaimState::fresh) continue;
      others_hold_ |= is_owned(word) && claim_owner_bits(word) != me;
      found_dying_ |= state == ClaimState::doomed;
      if (state == ClaimState::ready) consider(i, word);
    }
    std::sort(returned_.begin(), returned_.end(), [](auto& a, auto& b) { return a.sequence > b.sequence; });
    seen_returns_ = returns;
  }

  void keep_for_later(const Candidate& found) {
    returned_.push_back(found);
    has_returned_.store(true, std::memory_order_relaxed);
  }

  void consider(uint32_t slot, uint64_t word) {
    const uint64_t sequence = memory_.slot(slot).sequence.load_relaxed();
    if (claim_tag_of(sequence) == claim_tag(word)) return keep_for_later({sequence, slot, word});
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the borrower's fence
    if (memory_.claim(slot).load_ordered() == word) memory_.corrupt("the claim of a slot does not belong to its message");
  }

  // Whose a claim of a living consumer is. As long as it stands the entry does not change.
  uint64_t owner_of(uint64_t claim) const {
    const uint32_t entry = memory_.subscriber_entry(claim_consumer(claim));
    if (entry >= memory_.layout.entries) memory_.corrupt("a message is claimed by a consumer that cannot exist");
    return owner_word(entry, entry_incarnation(memory_.entry(entry).word.load_relaxed()));
  }

  // Give back what others have had in hand for longer than the lease, on our own clock. Who is moving a message is
  // left alone: only its death tells how far it came.
  void end_leases(int64_t now) {
    const auto lease = static_cast<int64_t>(memory_.layout.settings.lease_ns);
    if (now - watched_at_ < std::min(lease / 4, kSliceNanoseconds) && !planted(Canary::lease_of_the_moment)) return;
    watched_at_ = now;
    watched_.resize(memory_.layout.slots);
    const uint64_t me = claim_owner_bits(signature(ClaimState::claimed));
    bool ended = false;
    for (uint32_t i = 0; i < memory_.layout.slots; i++) {
      const uint64_t word = memory_.claim(i).load_ordered();
      if (claim_state(word) != ClaimState::claimed || claim_owner_bits(word) == me) continue;
      if (watched_[i].word != word) watched_[i] = {word, now};
      if (now - watched_[i].since < lease && !planted(Canary::lease_of_the_moment)) continue;
      ended |= try_return(memory_, i, owner_of(word), word);
    }
    if (!ended) return;
    announce_returns(memory_);
    wake_consumers(UINT32_MAX);
  }

  static constexpr uint32_t kStepsToTheTail = 8;
  static constexpr uint64_t kTailBehind = 16;
  static constexpr uint32_t kWakesALap = 16;
  static constexpr uint64_t kPrefetchDistance = 8;
  static constexpr int64_t kShortestSlice = 1'000'000;
  const Memory& memory_;
  Membership membership_;
  Options options_;
  uint32_t bit_;
  uint64_t mask_;
  Relaxed<uint64_t> fresh_{0};  // every message up to here was claimed once
  uint64_t newest_ = 0;  // up to here there were messages at the last look ahead
  Luck distance_;        // of letting messages gather
  Relaxed<uint64_t> seen_returns_;      // the count of returns before the last look
  std::vector<Candidate> returned_;     // what that look found and is left of it, the oldest last
  std::atomic<bool> has_returned_{false};  // that there is something left, for a thread that waits
  std::atomic<bool> has_ahead_{false};     // the same of what was claimed ahead
  bool found_dying_ = false;
  bool others_hold_ = false;
  std::vector<uint32_t> readers_ = std::vector<uint32_t>(memory_.layout.slots);  // in this process, by slot
  std::vector<uint8_t> has_bit_ = std::vector<uint8_t>(memory_.layout.slots);
  std::vector<Watched> watched_;
  int64_t watched_at_ = 0;
  uint64_t count_ = memory_.entry(membership_.index).count.load_relaxed();
  uint64_t settled_ = count_;  // what the others know of that
  uint32_t held_ = 0;
  Relaxed<uint32_t> freed_{0};  // places whose waiters were not woken yet
  int64_t woken_at_ = 0;
  Sleepers sleepers_;
  Relaxed<bool> closing_{false};
  bool left_ = false;
};

}  // namespace hawser
