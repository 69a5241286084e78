"""One transaction over Hawser and PostgreSQL, whose coordinator is killed between its phases and recovers.

python postgres_dtx.py hawser://127.0.0.1:7400 postgresql://user@host/database

An order is taken from a queue and an invoice is published, in Hawser; a row is written, in PostgreSQL: all of
it or nothing. The program below is the coordinator. It has both prepare their parts, writes its decision into
a log of its own, and then has both commit. Killed at whatever moment, it finds what is prepared when it comes
back: what its log has is committed, everything else is rolled back.

The server needs `max_prepared_transactions` above 0, the program `pip install 'psycopg[binary]'`.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

import hawser
from hawser.xa import Xid

ORDERS = 5
FORMAT = 7
# Every transaction of this coordinator begins with its name, so that it knows its own again.
NAME = "shop-"
MOMENTS = ["both are prepared", "the decision is written", "one of the two has committed"]


class Coordinator:
    """Two resources and a log of what was decided to commit."""

    def __init__(self, bus: hawser.Bus, database: "psycopg.Connection[tuple[Any, ...]]", log: Path) -> None:
        self.bus = bus
        self.database = database
        self.log = log
        self.orders = bus.queue("dtx/orders")
        self.invoices = bus.topic("dtx/invoices")

    def bill_one(self, fatal: str = "") -> bool:
        """One order, whether there was one; dies by its own hand at the moment `fatal`."""
        name = NAME + secrets.token_hex(8)
        here, there = Xid(FORMAT, name.encode(), b"hawser"), self.database.xid(FORMAT, name, "postgres")

        branch = self.bus.xa.start(here)
        order = branch.get(self.orders, timeout=1)
        if order is None:
            self.bus.xa.end(here)
            self.bus.xa.rollback(here)
            return False
        text = bytes(order).decode()
        branch.publish(self.invoices, text.encode())
        branch.accept(order)
        self.bus.xa.end(here)
        self.database.tpc_begin(there)
        self.database.execute("INSERT INTO invoices VALUES (%s)", [text])

        self.bus.xa.prepare(here)
        self.database.tpc_prepare()
        die_if(fatal == MOMENTS[0])
        self.decide(name)
        die_if(fatal == MOMENTS[1])
        self.bus.xa.commit(here)
        die_if(fatal == MOMENTS[2])
        self.database.tpc_commit()
        return True

    def decide(self, name: str) -> None:
        """From here on the transaction is to be committed, whatever happens."""
        with self.log.open("a") as log:
            log.write(name + "\n")
            log.flush()
            os.fsync(log.fileno())

    def recover(self) -> None:
        """End what an earlier run left prepared."""
        decided = set(self.log.read_text().splitlines())
        for here in self.bus.xa.recover():
            name = here.global_id.decode(errors="replace")
            if here.format == FORMAT and name.startswith(NAME):
                (self.bus.xa.commit if name in decided else self.bus.xa.rollback)(here)
        for there in self.database.tpc_recover():
            if there.format_id == FORMAT and there.gtrid.startswith(NAME):
                commit = there.gtrid in decided
                (self.database.tpc_commit if commit else self.database.tpc_rollback)(there)

    def found(self) -> str:
        """What is where; the invoices are the same on both sides."""
        rows = self.database.execute("SELECT order_name FROM invoices").fetchall()
        self.database.rollback()
        messages = self.invoices.read_oldest(ORDERS).samples
        assert sorted(bytes(each).decode() for each in messages) == sorted(name for (name,) in rows)
        waiting = self.orders.info()
        orders = waiting.ready + waiting.claimed
        return f"{orders} orders, {len(messages)} invoices in Hawser, {len(rows)} in PostgreSQL"


def die_if(fatal: bool) -> None:
    if fatal:
        os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, database_url: str, log: Path) -> None:
    with hawser.connect(url, name="shop") as bus, psycopg.connect(database_url) as database:
        bus.topic("dtx/invoices", partitions=1)
        bus.queue("dtx/orders").put_many([f"order {number}".encode() for number in range(ORDERS)])
        database.execute("CREATE TABLE invoices (order_name text PRIMARY KEY)")
        database.commit()
        coordinator = Coordinator(bus, database, log)
        for moment in MOMENTS:
            subprocess.run([sys.executable, __file__, url, database_url, str(log), moment], check=False)
            coordinator.recover()
            print(f"killed when {moment}: {coordinator.found()}")
        while coordinator.bill_one():
            pass
        print(f"at the end: {coordinator.found()}")
        coordinator.invoices.delete()
        coordinator.orders.delete()
        database.execute("DROP TABLE invoices")


def run_and_die(url: str, database_url: str, log: Path, moment: str) -> None:
    with hawser.connect(url, name="shop") as bus, psycopg.connect(database_url) as database:
        Coordinator(bus, database, log).bill_one(moment)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        run_and_die(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
    else:
        with tempfile.NamedTemporaryFile(prefix="coordinator-") as made:
            main(sys.argv[1], sys.argv[2], Path(made.name))
