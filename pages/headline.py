"""What a search amounts to, at one look: its title, where it stands, and the held-out comparison in figures."""

import shlex
from collections.abc import Sequence

from cel_core.config import SearchConfig
from cel_core.records import HeldOut, SearchRecord, Status
from cel_core.tasks import TASKS
from pages import formats, layout
from pages.examples import Shares
from pages.markup import Markup, command, figure, head_chips, is_live, join, notice, progress, signed, status_chip, tag, term

STAGES = {
    "loading": "Loading the model and the rows",
    "attribution": "Attribution: what each head promises, by one gradient an example",
    "stage 1 of 2": "Stage 1 of 2: every head alone, on the discovery examples",
    "stage 2 of 2": "Stage 2 of 2: subsets of the pool, on the discovery examples",
    "held-out": "Held-out comparison of the frozen set",
}
DISCOVERY = "Heads are compared, and the best subset is chosen, on these examples."
HELD_OUT = "Other examples, looked at only once the chosen subset is frozen: they took no part in the choice."
ABLATED = "Of the model as it is, and with the outputs of the frozen heads set to zero at every token."
FROZEN = "The subset of the pool that did best on the discovery examples, fixed before the held-out ones were looked at."
P_VALUE = "How often fixes and harms would be this far apart, or further, were each flip as likely one as the other."
NO_BENEFIT = "The pool held no beneficial set"


def title(record: SearchRecord) -> str:
    """Model and task, as a title."""
    task = TASKS[record.config.task].title if record.config.task in TASKS else record.config.task
    return f"{formats.model_name(record.config.model)} on {task}"


def page_head(record: SearchRecord, actions: object = "") -> Markup:
    """Title, status and the plan in one line."""
    config = record.config
    parts: list[object] = [
        join([term("p", f"Heads in the pool: the {config.p} best by themselves."), f" = {config.p}"]),
        join([term("k", f"Subsets of 1 to {config.k} heads of the pool are tried together."), f" = {config.k}"]),
        f"seed {config.seed}",
    ]
    if record.n_discovery:
        discovery = join([f"{formats.count(record.n_discovery)} ", term("discovery", DISCOVERY)])
        parts = [discovery, join([f"{formats.count(record.n_held_out)} ", term("held-out", HELD_OUT), " examples"]), *parts]
    plan = join(parts, ", ")
    took = f"took {formats.duration(record.duration_s)}{_saved(record)}" if record.status is Status.DONE else ""
    name = tag("span", "search ", tag("span", record.id, css="mono"))
    return layout.page_head(title(record), status_chip(record), name, plan, record.screened, took, actions=actions)


def _saved(record: SearchRecord) -> str:
    """How much less a search ran than one full pass for each head set and request would have."""
    if not record.plain_token_layers or not record.token_layers:
        return ""
    return f", {record.plain_token_layers / record.token_layers:.1f} times less work than plain passes"


def state(record: SearchRecord, left_s: float | None) -> Markup:
    """The state of a search as a card; nothing for a finished one that found a beneficial set.

    Args:
        record: the search.
        left_s: seconds left in this stage, where known.
    """
    if is_live(record):
        return _running(record, left_s)
    again = "Resume goes on from what is stored" if record.n_discovery else "Resume tries again"
    resume = join([again, "; on the command line: ", command(f"python -m cel_core search --resume {record.id}")])
    kept = (
        f"{STAGES.get(record.stage, record.stage)}. {formats.count(record.done)} of {formats.count(record.total)} evaluations "
    )
    kept += "of this stage are stored; none is made twice."
    if record.status is Status.FAILED:
        what, remedy = layout.in_two(record.error)
        return notice(f"Failed: {what}", remedy[:1].upper() + remedy[1:], resume, css="bad wide")
    if record.status is Status.STOPPED:
        return notice("Stopped", kept if record.total else "", resume, css="flat wide")
    if record.status is Status.INTERRUPTED:
        said = "Interrupted: the process that ran it is gone"
        return notice(said, kept if record.total else "", resume, css="flat wide")
    if not record.beneficial:
        return _no_benefit(record)
    return Markup()


def _running(record: SearchRecord, left_s: float | None) -> Markup:
    if record.status is Status.QUEUED:
        return notice("Queued", "It begins as soon as the worker is free; the bar above tells what it does now.", css="wide")
    label = STAGES.get(record.stage, record.stage)
    numbers = ""
    if record.total:
        share = 100 * record.done // record.total
        numbers = f"{formats.count(record.done)} of {formats.count(record.total)} evaluations, {share} %"
        if left_s is not None:
            numbers += f"  ·  about {formats.duration(left_s)} left in this stage"
    line = tag("div", tag("span", label), tag("span", numbers, css="sub"), css="going")
    kept = "Every evaluation is stored as it is made. " if record.total else ""
    sealed = "Held-out examples stay sealed until the set is frozen." if record.frozen_set is None else ""
    return tag("div", line, progress(record.done, record.total, label), tag("div", kept + sealed, css="sub below"), css="card")


def _no_benefit(record: SearchRecord) -> Markup:
    assert record.discovery_gain is not None and record.frozen_set is not None
    best = f"The best of its subsets, {formats.heads(record.frozen_set)}, changed discovery accuracy by "
    best += f"{formats.points(record.discovery_gain, record.n_discovery)} points (n = {formats.count(record.n_discovery)})."
    note = " It was frozen and tested all the same. This does not prove that no beneficial set exists."
    return notice(NO_BENEFIT, best + note, css="flat wide")


def figures(record: SearchRecord, balance: Sequence[Shares]) -> Markup:
    """The held-out comparison as a row of figures; nothing until it is there."""
    found = record.held_out
    if found is None:
        return Markup()
    n, size = found.n, f"n = {formats.count(found.n)} held-out"
    accuracy = f"{formats.percent(found.intact_accuracy, n)} → {formats.percent(found.ablated_accuracy, n)}"
    gain = signed(formats.points(found.gain, n), found.gain)
    fixes = tag("span", formats.count(found.fixes), css="gain")
    harms = tag("span", formats.count(found.harms), css="harm")
    parts = [
        figure(term("Accuracy, intact → ablated", ABLATED), accuracy, unit="%", below=size),
        figure("Gain", gain, unit="points", below=f"95 % interval {formats.interval(found.interval, n)}"),
        figure("Errors reduced by", formats.percent(found.relative_error_reduction), unit="%", below=_errors(found)),
        figure("Fixes / harms", fixes, " / ", harms, below="wrong → right / right → wrong"),
        figure(term("Exact McNemar p", P_VALUE), formats.p_value(found.mcnemar_p), below="two-sided"),
        figure(term("Frozen heads", FROZEN), head_chips(record.frozen_set), below=_discovery(record), css="heads"),
    ]
    if balance:
        parts.append(_balance(balance, n))
    return tag("div", *parts, css="card headline")


def _errors(found: HeldOut) -> str:
    wrong = found.n - found.intact_correct
    return f"of {formats.count(wrong)} errors of the intact model"


def _discovery(record: SearchRecord) -> str:
    if record.discovery_gain is None:
        return ""
    return f"discovery gain {formats.points(record.discovery_gain, record.n_discovery)} points"


def _balance(balance: Sequence[Shares], n: int) -> Markup:
    """How the predicted answers are spread before and after; the whole of it is among the evidence."""
    rows = [
        tag(
            "div",
            tag("span", s.answer),
            tag("span", f"{formats.percent(s.intact)} → {formats.percent(s.ablated)} %"),
            css="share",
        )
        for s in balance[:4]
    ]
    title = f"Predicted answers, n = {formats.count(n)}"
    return tag("div", tag("div", title, css="k"), tag("div", *rows, css="shares"))


def command_of(config: SearchConfig) -> str:
    """The command that runs the same search again."""
    parts = ["python -m cel_core search", "--model", config.model, "--task", config.task]
    parts += ["--data", config.data] if config.data else []
    parts += ["--kinds", ",".join(config.kinds)] if config.kinds else []
    parts += ["--discovery", str(config.n_discovery)] if config.n_discovery is not None else []
    parts += ["--held-out", str(config.n_held_out)] if config.n_held_out is not None else []
    parts += ["--p", str(config.p), "--k", str(config.k), "--seed", str(config.seed)]
    parts += ["--device", config.device] if config.device != "auto" else []
    parts += ["--dtype", config.dtype] if config.dtype != "auto" else []
    parts += ["--screen", "attribution", "--shortlist", str(config.shortlist)] if config.shortlist is not None else []
    for name in ("chat_template", "full_sweep", "allow_code_execution"):
        parts += ["--" + name.replace("_", "-")] if getattr(config, name) else []
    return " ".join([parts[0], *map(shlex.quote, parts[1:])])
