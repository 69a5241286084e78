"""Histories of what clients asked and were told, and the checkers that judge them.

A history is a file of JSON lines, an event a line, in the manner of Jepsen:

    {"type":"invoke","id":"c1/7","process":"c1","time":1042,"operation":"publish","object":"a:0","values":["x"]}
    {"type":"ok","id":"c1/7","process":"c1","time":1977,"offset":17}

`type` is `invoke` for a beginning, and for the end `ok` (done), `fail` (certainly not done) or `info` (nobody
knows; so is an operation without an end). `id` pairs the two. `time` is the machine's monotonic clock in
nanoseconds. A `process` is one client as far as order goes: what it publishes is kept in the order in which
it began, and what it polls goes on where its last poll ended. It may have several publishes in flight. A
client that starts over after an unknown outcome takes a new name. Files of several processes are merged.

`object` is the log (one partition) or the register that the operation is about. No value is published twice.

| operation | invoke          | ok                              | meaning                                 |
|-----------|-----------------|---------------------------------|-----------------------------------------|
| publish   | values          | offset                          | a batch: `offset` is its first value's  |
| poll      |                 | records: [[offset, value], ...] | what a subscription gave next           |
| seek      | offset, or none |                                 | the next poll begins there, or anywhere |
| read      | offset          | records, perhaps end            | what is kept from `offset` on           |
| final     |                 | records                         | the whole log, when all else has ended  |
| state     |                 | end                             | the offset of the next record           |
| trim      | offset          |                                 | from now on, what is below may be gone  |
| take      | group           | records                         | what a member of a group was given next |
| commit    | group, offset   |                                 | the group goes on there, or further on  |
| position  | group           | offset                          | where the group goes on                 |
| get       |                 | value, or none                  | what a register holds                   |
| set       | value           |                                 |                                         |
| swap      | expected, value | done: true or false             | compare and set; none: if nothing is    |

A process polls one after the other. An `end` is linearizable, of a read as of a state. A group begins at the
beginning of a log; its members may be given a record more than once, but each at least once before the group
goes on behind it.

`python -m tests.history FILE...` judges a history. `log_checks` looks at logs in linear time,
`linearizability` at the ends of logs and at registers, by search.
"""
