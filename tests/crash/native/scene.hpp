// One run: a world is set up, an actor started in it, brought to a point, and killed or stopped there.
#pragma once

#include "aftermath.hpp"
#include "operations.hpp"

namespace crash {

class Scene {
 public:
  virtual ~Scene() = default;
  virtual pid_t start() = 0;             // the actor's process
  virtual void meanwhile() {}            // the actor is prepared and stands before its operation
  virtual bool changed(bool system_call) = 0;  // whether what the actor shares is another than at the last call
  virtual void while_stopped() = 0;      // what everybody else does; must not wait
  virtual void finished() {}             // the actor, stopped and continued, has done its operation and lives
  virtual void after() = 0;              // the actor is dead
};

// Bytes compared with what they were.
class Watch {
 public:
  bool changed(const uint8_t* bytes, size_t size) {
    if (last_.size() == size && std::memcmp(last_.data(), bytes, size) == 0) return false;
    last_.assign(bytes, bytes + size);
    return true;
  }

 private:
  std::vector<uint8_t> last_;
};

class TopicScene : public Scene {
 public:
  TopicScene(const Operation& operation, const std::string& directory)
      : operation_(operation), world_(directory, operation.with_writer) {
    if (operation_.with_dead) leave_dead(world_);
  }

  pid_t start() override {
    Report& report = shared_report();
    std::memset(static_cast<void*>(&report), 0, sizeof report);
    const pid_t process = start_process();
    if (process != 0) return process;
    Tracee::be_traced();
    Actor actor(world_.place(), report);
    act(actor, operation_.prepare, operation_.run);
  }

  void meanwhile() override {
    if (operation_.meanwhile) operation_.meanwhile(world_);
    changed(false);
  }
  bool changed(bool) override {
    const bool first = watch_.changed(world_.memory().base, world_.memory().layout.payloads_at);
    return trace_watch_.changed(world_.trace().bytes(), world_.trace().size()) || first;
  }
  void while_stopped() override {
    work(world_, operation_.reliable);
    lodgers_.emplace(world_);
  }
  void finished() override {
    lodgers_->leave();
    work(world_, operation_.reliable);
  }
  void after() override {
    world_.trace().check({&world_.region()}, shared_report().finished);
    const bool forgets = std::string(operation_.name) == "forget_position";
    Aftermath(world_, shared_report(), forgets, operation_.with_dead ? kDeadParticipants : 0).check();
  }

 private:
  const Operation& operation_;
  World world_;
  std::optional<Lodgers> lodgers_;
  Watch watch_, trace_watch_;
};

}  // namespace crash
