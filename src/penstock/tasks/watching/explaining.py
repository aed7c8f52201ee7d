"""Why a task is where it is, and what can be done about it. Decides from facts; no I/O here."""

from __future__ import annotations

from typing import NamedTuple

from penstock.tasks.envelope import Status
from penstock.tasks.names import shown
from penstock.tasks.watching.facts import ENDINGS, Facts, Sighting
from penstock.tasks.watching.reports import WorkerReport
from penstock.tasks.watching.status import failure_of
from penstock.wire.durations import duration_text

_CLOSE_US = 60_000_000  # clocks of caller and node are no farther apart
_NAMED = 5  # tasks, workers or functions in one sentence


class Reason(NamedTuple):
    """Something that keeps a task from going on, or that ended it, and what to do about it."""

    why: str
    advice: str = ""


class Explanation(NamedTuple):
    """The state of a task, and the reasons for it: the one that matters most first."""

    state: str
    reasons: list[Reason]


def explain(facts: Facts) -> Explanation:
    """Why it has not finished, or how it has."""
    rules = {
        "held": _held,
        "delayed": _delayed,
        "ready": _ready,
        "leased": _leased,
        "running": _running,
        "dead": _dead,
        "unknown": _unknown,
    }
    reasons = rules.get(facts.state, _over)(facts)
    if facts.cancelled and not facts.over:
        reasons.insert(0, Reason("somebody has asked that it be cancelled: workers drop it"))
    return Explanation(facts.state, reasons)


# --- one rule for each state -------------------------------------------------------------------


def _held(facts: Facts) -> list[Reason]:
    if not facts.waits:
        return [Reason("it is held until somebody releases it by hand")]
    why = f"it waits for the outcome of {_count(facts.waits, 'task')}"
    lost = [task for task in facts.waits_for if facts.parents.get(task) == "unknown"]
    others = [
        f"{shown(task)} is {state}"
        for task, state in facts.parents.items()
        if task in facts.waits_for and state != "unknown"
    ]
    reasons = [Reason(why, f"Ask about those: {_some(others)}.") if others else Reason(why)]
    if lost:
        reasons.append(
            Reason(
                f"nobody knows of {_some([shown(task) for task in lost])}",
                "Its outcome may not have been kept, or for too short a time: submit it again under"
                " the same name, cancel this one, or release it with `penstock queue release`.",
            )
        )
    return reasons


def _delayed(facts: Facts) -> list[Reason]:
    seen = facts.seen
    assert seen is not None
    left = f"it comes back in {_time(seen.until_us - facts.now_us)}"
    limited = any(seen.call.function in report.rates for report in facts.workers)
    if seen.deliveries:
        attempts = seen.call.retries + 1
        why = f"{_count(seen.deliveries, 'attempt')} of {attempts:,} did not succeed; {left}"
        return [Reason(why, "What an attempt raised stands in the log of its worker.")]
    if limited:
        return [Reason(f"{_used_up(facts)}; {left}", _MORE_RATE)]
    call = seen.call
    if call.delay_ms and abs(call.submitted_us + call.delay_ms * 1000 - seen.until_us) < _CLOSE_US:
        return [Reason(f"it was submitted with a delay of {_time(call.delay_ms * 1000)}; {left}")]
    return [Reason(f"a worker has given it back for a while; {left}")]


def _ready(facts: Facts) -> list[Reason]:
    seen = facts.seen
    assert seen is not None
    alive = [each for each in facts.workers if not each.silent_us(facts.now_us)]
    if seen.gang:
        parked = facts.counts.get("parked", 0)
        why = f"it is a gang of {seen.gang:,}, and {_count(parked, 'worker')} wait for a gang"
        return [Reason(why, "Start workers with `penstock worker --gangs N`.")]
    reasons = _nobody(seen.call.function, alive)
    if seen.ahead and alive:
        reasons.append(_ahead(seen, alive))
    if not reasons and any(seen.call.function in each.rates for each in alive):
        reasons.append(Reason(_used_up(facts), _MORE_RATE))
    return reasons or [Reason("nothing is before it: a worker should take it at any moment")]


def _nobody(function: str, alive: list[WorkerReport]) -> list[Reason]:
    """Reasons if no worker would run the function."""
    if not alive:
        return [Reason("no worker is there", "Start one with `penstock worker MODULE`.")]
    able = [each for each in alive if each.declares(function)]
    if not able:
        module = function.partition(":")[0]
        why = f"none of {_count(len(alive), 'worker')} declares {function}; the first to get it"
        return [Reason(f"{why} will fail it", f"Start a worker with the module {module}.")]
    if all(each.draining for each in able):
        return [Reason("all workers are about to end", "Start another one.")]
    return []


def _ahead(seen: Sighting, alive: list[WorkerReport]) -> Reason:
    running = sum(len(each.running) for each in alive)
    executors = sum(each.executors for each in alive)
    done = sum(each.figures.get("done", 0) for each in alive)
    lived_us = max((each.told_us - each.started_us for each in alive), default=0)
    are = "is" if seen.ahead == 1 else "are"
    why = f"at least {_count(seen.ahead, 'task')} {are} before it"
    if done and lived_us > 0:
        rate = done * 1e6 / lived_us
        why += f", about {_time(int(seen.ahead / rate * 1e6))} of work at {rate:,.3g} tasks/s"
    advice = "Start more workers, or submit it with a higher priority."
    if running < executors:
        advice = "Workers are taking them."
    return Reason(f"{why}; {running:,} of {executors:,} executors are at work", advice)


def _leased(facts: Facts) -> list[Reason]:
    holder, until = facts.holder, _lease_text(facts)
    if holder is None:
        return [
            Reason(
                f"somebody has leased it who says nothing of it{until}",
                "If that worker is gone, others get the task when the lease is over. A worker"
                " tells of what it has about once a second.",
            )
        ]
    report = holder.report
    if silent := _silent(report, facts, until):
        return [silent]
    if report.rates.get(facts.function):
        return [Reason(f"{report.worker} waits for a start: {_used_up(facts)}", _MORE_RATE)]
    return [Reason(f"{report.worker} has leased it, and begins it as soon as an executor is free")]


def _running(facts: Facts) -> list[Reason]:
    holder = facts.holder
    assert holder is not None
    assert holder.begun is not None
    report, begun = holder.report, holder.begun
    if silent := _silent(report, facts, _lease_text(facts)):
        return [silent]
    where = f"{report.worker}/{begun.executor}"
    why = f"{where} has been running it for {_time(facts.now_us - begun.began_us)}"
    if begun.attempt > 1:
        why += f", attempt {begun.attempt:,}"
    limit_ms = 0 if facts.seen is None else facts.seen.call.timeout_ms
    if limit_ms:
        return [Reason(f"{why}; it is ended after {_time(limit_ms * 1000)}")]
    return [Reason(why, "It has no time limit. Lease and worker are alive; to end it, cancel it.")]


def _silent(report: WorkerReport, facts: Facts, until: str) -> Reason | None:
    silent_us = report.silent_us(facts.now_us)
    if not silent_us:
        return None
    return Reason(
        f"{report.worker} has it, and has said nothing for {_time(silent_us)}{until}",
        "If it is gone, another worker gets the task then; nothing is to be done.",
    )


def _dead(facts: Facts) -> list[Reason]:
    return [Reason("it has failed, and only its dead letter is left", _AGAIN)]


def _unknown(facts: Facts) -> list[Reason]:
    if not facts.whole:
        waiting = _count(facts.counts.get("messages", 0), "task")
        return [
            Reason(
                f"it was not seen: the queue has {waiting}, of which only the oldest are looked at",
                "It is likely to be one of the others. Ask again later, or start more workers.",
            )
        ]
    return [
        Reason(
            "no queue, worker or outcome knows of it",
            "It may have ended without its outcome being kept (`keep=`), or longer ago than that;"
            " it may be of another task set, or was never stored.",
        )
    ]


def _over(facts: Facts) -> list[Reason]:
    outcome = facts.outcome
    assert outcome is not None
    ended = facts.state
    if outcome.ended_us:
        ended += f" {_time(facts.now_us - outcome.ended_us)} ago"
    if outcome.status == Status.DONE:
        return [Reason(ended)]
    if not outcome.attempt:
        return [Reason(f"{ended}: it never ran, as a task that it depends on did not succeed",
                       _upstream(facts))]  # fmt: skip
    failure = failure_of(outcome)
    told = "" if failure is None else f": {failure.kind}: {failure.text}"
    dead = facts.seen is not None and facts.seen.state == "dead"
    where = f" in attempt {outcome.attempt:,} on {outcome.worker}" if outcome.worker else ""
    return [Reason(f"{ended}{where}{told}", _AGAIN if dead else "")]


def _upstream(facts: Facts) -> str:
    bad = [shown(task) for task, state in facts.parents.items() if state in ENDINGS[1:]]
    if not bad:
        return "Look at what it comes after: `penstock tasks graph`."
    return f"Look at {_some(bad)}: `penstock tasks show`."


# --- words -------------------------------------------------------------------------------------

_MORE_RATE = "Declare a higher rate, if the function may start more often."
_AGAIN = "Mend the cause, then send dead tasks again with `penstock queue redrive`."


def _used_up(facts: Facts) -> str:
    why = f"the rate of {facts.function} is used up"
    if facts.free_us > facts.now_us:
        why += f"; starts are free in {_time(facts.free_us - facts.now_us)}"
    return why


def _lease_text(facts: Facts) -> str:
    if facts.seen is None or facts.seen.state != "leased":
        return ""
    return f"; the lease ends in {_time(facts.seen.until_us - facts.now_us)} unless it is extended"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _time(us: int) -> str:
    return duration_text(max(us, 0) / 1e6)
