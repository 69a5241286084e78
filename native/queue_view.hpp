// Looking at a queue: what its messages are doing, and copies of the oldest. Changes nothing.
//
// A message that is not done keeps its slot, so a copy is sound if the claim is of the same message and not done
// afterwards, too.
#pragma once

#include "inspection.hpp"

namespace hawser {

struct OwnerView {
  std::string name;
  uint64_t pid, incarnation;
  uint32_t claimed;
};

struct QueueView {
  uint64_t ready = 0, claimed = 0;
  uint64_t dying = 0;   // to go to the dead letters
  uint64_t moving = 0;  // on their way to another queue, or left there by a dead mover
  uint64_t oldest_ns = 0;  // when the oldest one that is not done was put; 0 if there is none
  uint32_t pinned = 0;  // slots that are kept until a move is over
  std::vector<OwnerView> owners;
};

// A fresh claim is that of a message only if the ring carries its slot.
inline bool is_message(const Memory& memory, uint32_t slot, uint64_t claim) {
  const ClaimState state = claim_state(claim);
  return state == ClaimState::fresh ? carried(memory, slot) : state != ClaimState::done;
}

// Who has claimed messages, by its number among consumers.
inline std::vector<OwnerView> name_owners(const Memory& memory, const std::vector<uint32_t>& claims) {
  std::vector<OwnerView> owners;
  for (uint32_t i = 0; i < claims.size(); i++) {
    if (claims[i] == 0) continue;
    const Entry& entry = memory.entry(memory.subscriber_entry(i));
    owners.push_back({entry_name(entry), entry.pid.load_relaxed(), entry_incarnation(entry.word.load_ordered()), claims[i]});
  }
  return owners;
}

inline QueueView view_queue(const Memory& memory) {
  QueueView view;
  std::vector<uint32_t> claims(memory.layout.settings.max_subscribers);
  uint64_t oldest = UINT64_MAX;
  for (uint32_t i = 0; i < memory.layout.slots; i++) {
    const uint64_t claim = memory.claim(i).load_ordered();
    const uint64_t sequence = memory.slot(i).sequence.load_relaxed(), when = memory.slot(i).timestamp_ns.load_relaxed();
    view.pinned += memory.origin(i).pin.load_ordered() != 0;
    if (!is_message(memory, i, claim)) continue;
    const ClaimState state = claim_state(claim);
    view.dying += state == ClaimState::doomed;
    view.ready += state == ClaimState::fresh || state == ClaimState::ready;
    view.claimed += state == ClaimState::claimed;
    view.moving += state == ClaimState::burying || state == ClaimState::reviving || state == ClaimState::astray;
    if (is_owned(claim) && claim_consumer(claim) < claims.size()) claims[claim_consumer(claim)]++;
    if (sequence < oldest && memory.claim(i).load_ordered() == claim) oldest = sequence, view.oldest_ns = when;
  }
  view.owners = name_owners(memory, claims);
  return view;
}

// Copies of the `count` oldest messages that are not done.
inline std::vector<Copied> peek(const Memory& memory, uint64_t count) {
  std::vector<std::pair<uint64_t, uint32_t>> found;
  for (uint32_t i = 0; i < memory.layout.slots; i++)
    if (is_message(memory, i, memory.claim(i).load_ordered())) found.emplace_back(memory.slot(i).sequence.load_relaxed(), i);
  std::sort(found.begin(), found.end());
  std::vector<Copied> copies;
  for (const auto& [sequence, slot] : found) {
    if (copies.size() == count) break;
    Copied copied{};
    const bool sound = copy_slot(memory, slot, sequence, copied);
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the borrower's fence
    const uint64_t claim = memory.claim(slot).load_ordered();
    if (claim_tag(claim) != claim_tag_of(sequence) || !is_message(memory, slot, claim)) continue;  // done meanwhile
    if (!sound) memory.corrupt("message " + std::to_string(sequence) + " is damaged");
    copies.push_back(std::move(copied));
  }
  return copies;
}

}  // namespace hawser
