"""`hawser tx list|show|recover|commit|rollback|forget`: transactions as they are, and the word of a person.

A transaction is written FORMAT:GLOBAL:BRANCH, the ids in hexadecimal, as `str(Xid)` has it; with #INCARNATION
behind it that use of the xid is meant, without it the latest.
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
    """Add the argument XID, completed from those that are not over."""
    argument: Callable[[F], F] = click.argument(
        "wanted", metavar="XID", callback=_parse_xid, shell_complete=_complete_xid
    )
    return argument(function)


def _parse_xid(context: click.Context, parameter: click.Parameter, value: str) -> TransactionId:
    match = _WRITTEN.fullmatch(value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is no transaction; write FORMAT:GLOBAL:BRANCH, with #INCARNATION behind it or "
            "without, and the ids in hexadecimal, as `hawser tx list` prints them"
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
    """What the cluster of the command line answers."""

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


# Looking.


@click.command("list")
@shared_options
def list_transactions() -> None:
    """Every transaction that is not over: those that wait for a decision first, and of those the oldest.

    A shard that does not answer is named on standard error, and the command ends with 4: its transactions may
    be missing. Ages are counted by leaders, and begin anew when another one leads; but of what is prepared
    for a coordinator the log says since when.
    """
    survey = _query(lambda router: seen.survey_transactions(router, _LOOK_SECONDS))
    with exit_with(_UNHEALTHY if survey.unanswered else 0):
        if wants_json():
            print_json([_as_json(each) for each in survey.transactions])
        elif survey.transactions:
            _print_list(survey.transactions)
        elif not survey.unanswered:
            notice("no transaction is under way")
        for shard, error in survey.unanswered.items():
            notice(f"{_label(shard)} is left out: {error}")


@click.command()
@shared_options
def recover() -> None:
    """Those that are prepared, and those that a person has decided and nobody has forgotten.

    It is what a transaction manager gets from `bus.xa.recover()`.
    """
    found = _query(lambda router: seen.recover(router, _LOOK_SECONDS))
    if wants_json():
        print_json([_as_json(each) for each in found])
    elif found:
        _print_list(found)
    else:
        notice("no transaction waits for a decision")


@click.command()
@_xid_argument
@shared_options
def show(wanted: TransactionId) -> None:
    """State, age, home and branches of one transaction; of one that is over, how it ended."""
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
        ("home", _label(found.home) if found.home else None),
        ("age", age(found.age_seconds) if found.branches else None),
        ("time-out", age(found.timeout_seconds or 0) if ends_by_itself else None),
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
    remarks += [f"not heard by: {' '.join(untold)}"] if untold else []
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
        return "knows the outcome" if branch.told else "has not heard the outcome"
    return {True: "prepared", False: "open", None: "not seen"}[branch.prepared]


def _label(shard: str) -> str:
    """As people name it."""
    return f"{topic_of(shard)}/{shard.rpartition('/')[2]}"


def _as_json(transaction: TransactionStatus) -> dict[str, Any]:
    name, _, incarnation = transaction.id.partition("#")
    shown: dict[str, Any] = msgspec.to_builtins(transaction)
    return {"id": shown.pop("id"), "xid": name, "incarnation": int(incarnation), **shown}


# Deciding.


def _decision_options(function: F) -> F:
    reason = click.option(
        "--reason",
        required=True,
        callback=_check_reason,
        help="Why; it is kept with the transaction, for whoever asks.",
    )
    yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
    options: F = _xid_argument(reason(yes(shared_options(function))))
    return options


def _check_reason(context: click.Context, parameter: click.Parameter, value: str) -> str:
    text = value.strip()
    if not text or len(text) > _MOST_REASON:
        raise click.BadParameter(f"give a reason, of at most {_MOST_REASON} characters")
    return text


@click.command()
@_decision_options
def commit(wanted: TransactionId, reason: str, yes: bool) -> None:
    """Commit a prepared transaction by hand, in place of its coordinator.

    All of it is committed, on every shard, and cannot be undone. If its coordinator decides otherwise
    later, it is told so (heur-com). `hawser tx forget` ends that. One that is not prepared is refused.
    """
    _decide(wanted, Outcome.COMMITTED, reason, yes)


@click.command()
@_decision_options
def rollback(wanted: TransactionId, reason: str, yes: bool) -> None:
    """Roll a prepared transaction back by hand, in place of its coordinator.

    Nothing of it happens, on any shard, and its messages go back to their queues. If its coordinator decides
    otherwise later, it is told so (heur-rb). `hawser tx forget` ends that. One that is not prepared is
    refused: it is rolled back by itself when its time is over.
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
    what = f"{word} {done}" if kept == reason else f"{done} was {word} by a person before, because: {kept}"
    notice(f"{what}; its coordinator is told so if it asks, until `hawser tx forget {done}`")


@click.command()
@_xid_argument
@shared_options
def forget(wanted: TransactionId) -> None:
    """Forget a transaction that was decided by hand, once its coordinator knows."""
    done = _query(lambda router: seen.forget(router, wanted, _LOOK_SECONDS))
    if wants_json():
        print_json({"id": str(done), "forgotten": True})
    else:
        notice(f"forgot {done}")
