// Kills or stops one operation at every instruction that changed shared memory and after every system call.
//
//   stepper list
//   stepper DIRECTORY OPERATION kill|stop|both [more=N] [between=N] [every=1] [seconds=N] [seed=N] [step=N] [watchdog=N] [agent=N] [traced=1]
//
// more=N: also at N instructions in between; between=N: at those only; every=1: at every instruction, in random order, for at most that
// many seconds; step=N: at that one only; watchdog=N: seconds after which one attempt counts as hung; agent=N: a
// socket whose other end does all its duties for each byte, and answers with one, while the actor stands still;
// traced=1: everything is traced, and what the trace tells is checked, too;
// Prints one line of counts. Exit status 0: nothing broke. 1: something did, and where. 4: somebody waited.
#include <cstdio>
#include <functional>
#include <map>
#include <random>

#include "naming.hpp"
#include "queue_reserved.hpp"

namespace crash {
namespace {

unsigned watchdog_seconds = 20;
int agent_socket = -1;
char current[256] = "nothing yet";

void bark(int) {
  (void)!write(STDOUT_FILENO, current, strlen(current));
  (void)!write(STDOUT_FILENO, ": somebody waits for ever\n", 26);
  _exit(4);
}

using MakeScene = std::function<std::unique_ptr<Scene>()>;

MakeScene scene_maker(const std::string& name, const std::string& directory) {
  for (const Operation& operation : operations::table)
    if (operation.name == name) return [&operation, directory] { return std::make_unique<TopicScene>(operation, directory); };
  for (const NameOperation& operation : naming::table)
    if (operation.name == name) return [&operation, directory] { return std::make_unique<NameScene>(operation, directory); };
  for (const QueueOperation& operation : queue_operations::table)
    if (operation.name == name) return [&operation, directory] { return std::make_unique<QueueScene>(operation, directory); };
  for (const ReservedOperation& operation : reserved::table)
    if (operation.name == name) return [&operation, directory] { return std::make_unique<ReservedScene>(operation, directory); };
  throw Failure("no operation is called " + name);
}

struct Recording {
  std::vector<Point> points;
  uint64_t steps = 0;
};

Recording record(const MakeScene& make) {
  Recording recording;
  const auto scene = make();
  Tracee actor(scene->start());
  actor.await_begin();
  scene->meanwhile();
  recording.points = actor.record([&](bool call) { return scene->changed(call); }, recording.steps);
  require(shared_report().error < 0, std::string("the operation failed: ") + shared_report().text);
  actor.end();
  scene->after();
  return recording;
}

// The answer of the actor to "is everything you hold as it was?".
void ask(Tracee& actor) {
  Report& report = shared_report();
  report.asked++;
  while (report.answered != report.asked) {
    require(!actor.gone(), "the actor ended");
    usleep(20);
  }
  require(report.error < 0, std::string("the actor: ") + report.text);
}

// False: the point was not reached, which happens only to instructions that have nothing to do with us (where
// memory comes from depends on what was allocated before).
bool reach(Scene& scene, Tracee& actor, const Point& point) {
  actor.await_begin();
  scene.meanwhile();
  const bool reached = actor.run_to(point);
  require(reached || !point.changed, "a point was not reached again");
  return reached;
}

bool kill_at(const MakeScene& make, const Point& point) {
  const auto scene = make();
  Tracee actor(scene->start());
  const bool reached = reach(*scene, actor, point);
  actor.end();
  scene->after();
  return reached;
}

void await_agent() {
  char pass = 0;
  if (agent_socket >= 0)
    require(write(agent_socket, &pass, 1) == 1 && read(agent_socket, &pass, 1) == 1, "the agent is gone");
}

bool stop_at(const MakeScene& make, const Point& point) {
  const auto scene = make();
  Tracee actor(scene->start());
  const bool reached = reach(*scene, actor, point);
  actor.stop();
  await_agent();
  scene->while_stopped();
  actor.go_on();
  while (!shared_report().finished) {
    require(!actor.gone(), "the actor ended");
    usleep(20);
  }
  ask(actor);
  scene->finished();
  ask(actor);
  actor.end();
  scene->after();
  return reached;
}

void attempt(const char* what, const std::string& name, const Point& point, const std::function<void()>& run) {
  snprintf(current, sizeof current, "%s %s at step %lu (instruction 0x%lx, time %u)", name.c_str(), what, point.step,
           point.instruction, point.occurrence);
  alarm(watchdog_seconds);
  try {
    run();
  } catch (const std::exception& error) {
    throw Failure(std::string(current) + ": " + error.what());
  }
  alarm(0);
}

std::vector<Point> choose(const Recording& recording, std::map<std::string, uint64_t>& options) {
  std::vector<Point> chosen;
  const uint64_t more = options["between"] ? options["between"] : options["more"];
  const uint64_t stride = options["every"] ? 1 : more ? recording.steps / more + 1 : 0;
  const uint64_t offset = options["seed"];
  for (const Point& point : recording.points) {
    const bool state = point.changed || point.system_call, sampled = stride && (point.step + offset) % stride == 0;
    const bool wanted = options["between"] ? sampled && !state : sampled || state;
    if (options["step"] ? point.step == options["step"] : wanted) chosen.push_back(point);
  }
  if (!options["step"] && !options["between"]) chosen.push_back({});
  if (options["every"]) std::shuffle(chosen.begin(), chosen.end(), std::mt19937_64(options["seed"]));
  return chosen;
}

void sweep(const std::string& name, const std::string& mode, const MakeScene& make, std::map<std::string, uint64_t>& options) {
  Recording recording;
  attempt("stepped", name, {}, [&] { recording = record(make); });
  const std::vector<Point> points = choose(recording, options);
  const auto states = static_cast<uint64_t>(
      std::count_if(recording.points.begin(), recording.points.end(), [](const Point& point) { return point.changed; }));
  uint64_t kills = 0, stops = 0;
  const int64_t until = hawser::monotonic_now() + static_cast<int64_t>(options["seconds"]) * 1'000'000'000;
  for (const Point& point : points) {
    if (options["seconds"] && hawser::monotonic_now() > until) break;
    if (mode != "stop") attempt("killed", name, point, [&] { kill_at(make, point); }), kills++;
    if (mode != "kill") attempt("stopped", name, point, [&] { stop_at(make, point); }), stops++;
  }
  printf("operation=%s instructions=%lu states=%lu points=%zu kills=%lu stops=%lu\n", name.c_str(), recording.steps,
         states, points.size(), kills, stops);
}

int main(int count, char** arguments) {
  if (count == 2 && std::string(arguments[1]) == "list") {
    for (const Operation& operation : operations::table) puts(operation.name);
    for (const NameOperation& operation : naming::table) puts(operation.name);
    for (const QueueOperation& operation : queue_operations::table) puts(operation.name);
    for (const ReservedOperation& operation : reserved::table) puts(operation.name);
    return 0;
  }
  if (count < 4) return 2;
  std::map<std::string, uint64_t> options;
  for (int i = 4; i < count; i++) {
    const std::string option = arguments[i];
    options[option.substr(0, option.find('='))] = std::stoull(option.substr(option.find('=') + 1));
  }
  if (options["watchdog"]) watchdog_seconds = static_cast<unsigned>(options["watchdog"]);
  traced = options["traced"];
  if (options["agent"]) agent_socket = static_cast<int>(options["agent"]);
  signal(SIGALRM, bark);
  try {
    sweep(arguments[2], arguments[3], scene_maker(arguments[2], arguments[1]), options);
  } catch (const std::exception& error) {
    puts(error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace crash

int main(int count, char** arguments) { return crash::main(count, arguments); }
