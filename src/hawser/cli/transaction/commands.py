"""`hawser tx list|show|recover|commit|rollback|forget`: inspect transactions, and decide them by hand.

A transaction is written FORMAT:GLOBAL:BRANCH with the ids in hexadecimal, as in `str(Xid)`. The suffix
#INCARNATION selects one use of the xid; without it the latest use is selected.
"""

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click
import msgspec

import hawser
from hawser.cli.cluster.connection import addresses, run
from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import Cell, Column, age, byte_size, count, exit_with, notice, print_json, print_table
from hawser.cluster.client.admin import transactions as seen
from hawser.cluster.client.admin.transactions import BranchStatus, Stage, TransactionStatus
from hawser.cluster.client.router import Router
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.shard_map import topic_of
from hawser.log.state.results import Outcome
from hawser.transaction.identity import TransactionId, Xid

__all__ = ["commit", "forget", "list_transactions", "recover", "rollback", "show"]

F = TypeVar("F", bound=Callable[..., Any])
Result = TypeVar("Result")

_UNHEALTHY = 4
_LOOK_SECONDS = 3.0
_COMPLETION_SECONDS = 1.0
_MOST_REASON = 500
_WRITTEN = re.compile(r"(\d{1,10}):((?:[0-9a-fA-F]{2})+):((?:[0-9a-fA-F]{2})*)(?:#(\d{1,19}))?")
_COLORS = {
    Stage.PREPARED: "yellow",
    Stage.HEURISTIC_COMMIT: "red",
    Stage.HEURISTIC_ROLLBACK: "red",
    Stage.COMMITTED: "green",
}


def _xid_argument(function: F) -> F:
    """Add the argument XID, completed from unfinished transactions."""
    argument: Callable[[F], F] = click.argument(
        "wanted", metavar="XID", callback=_parse_xid, shell_complete=_complete_xid
    )
    return argument(function)


def _parse_xid(context: click.Context, parameter: click.Parameter, value: str) -> TransactionId:
    match = _WRITTEN.fullmatch(value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not a transaction; write FORMAT:GLOBAL:BRANCH with the ids in hexadecimal, "
            "with or without #INCARNATION, as `hawser tx list` prints them"
        )
    xid = Xid(int(match[1]), bytes.fromhex(match[2]), bytes.fromhex(match[3]))
    xid.check()
    return TransactionId(xid, int(match[4] or 0))


def _complete_xid(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    try:
        with context.scope(cleanup=False):
            survey = _query(lambda router: seen.survey_transactions(router, _COMPLETION_SECONDS))
    except hawser.HawserError:
        return []
    return [each.id for each in survey.transactions if each.id.startswith(incomplete)]


def _query(work: Callable[[Router], Awaitable[Result]]) -> Result:
    """Run `work` with a router to the cluster of the command line."""

    async def ask() -> Result:
        async with _router(addresses()) as router:
            return await work(router)

    return run(ask())


@asynccontextmanager
async def _router(given: list[str]) -> AsyncIterator[Router]:
    settings = ClientSettings()
    router = Router(given, "command", settings)
    try:
        await router.start(settings.connect_seconds)
        yield router
    finally:
        await router.close()


# Inspection.


@click.command("list")
@shared_options
def list_transactions() -> None:
    """List unfinished transactions: those that wait for a decision first, the oldest first.

    If a shard does not answer, its transactions may be missing; it is named on standard error, and the
    command exits with 4. Leaders measure ages, so an age restarts after a change of leader, except for a
    branch that is prepared for a coordinator: its log entry has the time.
    """
    survey = _query(lambda router: seen.survey_transactions(router, _LOOK_SECONDS))
    with exit_with(_UNHEALTHY if survey.unanswered else 0):
        if wants_json():
            print_json([_as_json(each) for each in survey.transactions])
        elif survey.transactions:
            _print_list(survey.transactions)
        elif not survey.unanswered:
            notice("no unfinished transactions")
        for shard, error in survey.unanswered.items():
            notice(f"{_label(shard)} is left out: {error}")


@click.command()
@shared_options
def recover() -> None:
    """List prepared transactions, and those that were decided by hand and not forgotten.

    A transaction manager gets the same list from `bus.xa.recover()`.
    """
    found = _query(lambda router: seen.recover(router, _LOOK_SECONDS))
    if wants_json():
        print_json([_as_json(each) for each in found])
    elif found:
        _print_list(found)
    else:
        notice("no transactions wait for a decision")


@click.command()
@_xid_argument
@shared_options
def show(wanted: TransactionId) -> None:
    """Show the state, age, coordinator shard and branches of a transaction, or the outcome of a finished
    one."""
    found = _query(lambda router: seen.query(router, wanted, _LOOK_SECONDS))
    if wants_json():
        print_json(_as_json(found))
        return
    ends_by_itself = found.stage in (Stage.OPEN, Stage.PREPARING) and found.timeout_seconds is not None
    facts = [
        ("transaction", found.id),
        ("state", click.style(found.stage, fg=_COLORS.get(found.stage))),
        ("outcome", found.outcome),
        ("reason", found.reason),
        ("coordinator", _label(found.home) if found.home else None),
        ("age", age(found.age_seconds) if found.branches else None),
        ("timeout", age(found.timeout_seconds or 0) if ends_by_itself else None),
    ]
    for title, text in facts:
        if text:
            click.echo(f"{click.style(title.ljust(13), bold=True)}{text}")
    if found.branches:
        click.echo()
        _print_branches(found)


def _print_list(found: list[TransactionStatus]) -> None:
    columns = [
        Column("transaction"),
        Column("state"),
        Column("age", right=True),
        Column("operations", right=True),
        Column("bytes", right=True),
        Column("shards"),
        Column("remarks"),
    ]
    rows: list[list[str | Cell]] = [
        [
            each.id,
            Cell(each.stage, _COLORS.get(each.stage, "")),
            age(each.age_seconds),
            count(sum(branch.operations for branch in each.branches)),
            _size(each),
            " ".join(_label(branch.shard) for branch in each.branches),
            _remarks(each),
        ]
        for each in found
    ]
    print_table(columns, rows)


def _size(transaction: TransactionStatus) -> str:
    known = [each.size_bytes for each in transaction.branches if each.size_bytes is not None]
    return byte_size(sum(known)) if known else ""


def _remarks(transaction: TransactionStatus) -> str:
    if transaction.outcome is None:
        return ""
    untold = [_label(each.shard) for each in transaction.branches if not each.told]
    remarks = [transaction.reason] if transaction.reason else []
    remarks += [f"not delivered to: {' '.join(untold)}"] if untold else []
    return "; ".join(remarks)


def _print_branches(transaction: TransactionStatus) -> None:
    columns = [
        Column("shard"),
        Column("operations", right=True),
        Column("bytes", right=True),
        Column("state"),
    ]
    rows = [
        [
            _label(each.shard),
            count(each.operations),
            "" if each.size_bytes is None else byte_size(each.size_bytes),
            _branch_state(transaction, each),
        ]
        for each in transaction.branches
    ]
    print_table(columns, rows)


def _branch_state(transaction: TransactionStatus, branch: BranchStatus) -> str:
    if transaction.outcome is not None:
        return "has the outcome" if branch.told else "does not have the outcome"
    return {True: "prepared", False: "open", None: "unknown"}[branch.prepared]


def _label(shard: str) -> str:
    """The name of a shard, as TOPIC/PARTITION."""
    return f"{topic_of(shard)}/{shard.rpartition('/')[2]}"


def _as_json(transaction: TransactionStatus) -> dict[str, Any]:
    name, _, incarnation = transaction.id.partition("#")
    shown: dict[str, Any] = msgspec.to_builtins(transaction)
    return {"id": shown.pop("id"), "xid": name, "incarnation": int(incarnation), **shown}


# Decisions by hand.


def _decision_options(function: F) -> F:
    reason = click.option(
        "--reason",
        required=True,
        callback=_check_reason,
        help="The reason; it is stored with the transaction.",
    )
    yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
    options: F = _xid_argument(reason(yes(shared_options(function))))
    return options


def _check_reason(context: click.Context, parameter: click.Parameter, value: str) -> str:
    text = value.strip()
    if not text or len(text) > _MOST_REASON:
        raise click.BadParameter(f"give a reason of at most {_MOST_REASON} characters")
    return text


@click.command()
@_decision_options
def commit(wanted: TransactionId, reason: str, yes: bool) -> None:
    """Commit a prepared transaction by hand, in place of its coordinator.

    The commit applies to every shard and cannot be undone. If the coordinator decides otherwise later, it
    gets a heuristic commit (heur-com), until `hawser tx forget`. A transaction that is not prepared is
    refused.
    """
    _decide(wanted, Outcome.COMMITTED, reason, yes)


@click.command()
@_decision_options
def rollback(wanted: TransactionId, reason: str, yes: bool) -> None:
    """Roll back a prepared transaction by hand, in place of its coordinator.

    No shard applies any of it, and its messages return to their queues. If the coordinator decides otherwise
    later, it gets a heuristic rollback (heur-rb), until `hawser tx forget`. A transaction that is not
    prepared is refused: it is rolled back at its timeout.
    """
    _decide(wanted, Outcome.ROLLED_BACK, reason, yes)


def _decide(wanted: TransactionId, outcome: Outcome, reason: str, yes: bool) -> None:
    verb = "commit" if outcome is Outcome.COMMITTED else "roll back"
    if not yes and sys.stdin.isatty():
        found = _query(lambda router: seen.query(router, wanted, _LOOK_SECONDS))
        operations = count(sum(each.operations for each in found.branches))
        places = " ".join(_label(each.shard) for each in found.branches)
        question = (
            f"{verb.capitalize()} {found.id}, {operations} operations on {places}, without its coordinator?"
        )
        click.confirm(question, abort=True, err=True)
    done, kept = _query(lambda router: seen.decide(router, wanted, outcome, reason, _LOOK_SECONDS))
    word = "committed" if outcome is Outcome.COMMITTED else "rolled back"
    if wants_json():
        print_json({"id": str(done), "outcome": word, "reason": kept})
        return
    what = f"{word} {done}" if kept == reason else f"{done} was already {word} by hand, because: {kept}"
    notice(f"{what}; its coordinator gets this outcome until `hawser tx forget {done}`")


@click.command()
@_xid_argument
@shared_options
def forget(wanted: TransactionId) -> None:
    """Forget a transaction that was decided by hand, after its coordinator got the outcome."""

    done = _query(lambda router: seen.forget(router, wanted, _LOOK_SECONDS))
    if wants_json():
        print_json({"id": str(done), "forgotten": True})
    else:
        notice(f"forgot {done}")
