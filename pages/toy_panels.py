"""The toy page's panels in HTML: deletion, population, jobs, the phase map, and the way to the demo model's search."""

from collections.abc import Sequence

from cel_core.config import is_demo
from cel_core.records import SearchRecord, Status
from cel_core.tasks import TASKS
from cel_core.toy import PhaseCell, PopulationSummary, Trajectory, in_event, predicted_effects
from pages import downloads, formats, toy_words
from pages.markup import Column, Markup, Row, command, figure, join, notice, progress, table, tag
from pages.toy_controls import SETTING_NAMES, measures
from pages.toy_figures import colour
from pages.toy_jobs import Job
from pages.toy_question import MEASURES, Question
from pages.toy_words import signed, value
from pages.toy_work import expected_s

WORKING = {"population": "training", "scaling": "training at several scales", "map": "filling in", "run": "training"}
VISIBLE = 5e-4  # of a risk, with three decimals
RISK_COLUMNS = (Column("Model"), Column("Risk A", "n"), Column("Risk B", "n"), Column("Joint", "n"))


def plot_head(title: str, *end: object) -> Markup:
    """A plot's title, and what stands at its right."""
    return tag("div", tag("span", title, css="k"), tag("span", *end, css="end"), css="tools bare")


def csv(asked: Question, name: str) -> Markup:
    """Links that download the table behind a plot."""
    return downloads.links("toy", name, asked.query)


def says(text: str) -> Markup:
    """The sentence below a plot."""
    return tag("p", text, css="sub says")


def deletion(asked: Question, run: Trajectory, head: int | None) -> Markup:
    """Risks at the end, intact and without a head, with the theorem's changes beside the measured ones."""
    end = run.risks
    intact = float(end.task_a[-1]), float(end.task_b[-1]), float(end.joint[-1])
    rows = [Row(["Intact", *map(value, intact)])]
    if head is not None:
        found = run.risks_without(head)
        after = float(found.task_a[-1]), float(found.task_b[-1]), float(found.joint[-1])
        change = [now - before for now, before in zip(after, intact, strict=True)]
        shades = ["gain" if each < -VISIBLE else "harm" if each > VISIBLE else "" for each in change]
        shown = [tag("span", value(each), css=shade) for each, shade in zip(after, shades, strict=True)]
        rows += [Row([_head_name(head), *shown], selected=True), Row(["Change, measured", *map(signed, change)])]
        drop, rise, joint = map(float, predicted_effects(run.config))
        winner = int(run.winners[0])
        theorem = "Change, theorem on E" if head == winner else f"Theorem on E, of head {winner}"
        rows.append(Row([theorem, *map(signed, (-drop, rise, joint))]))
    drawn = table(RISK_COLUMNS, rows, "risks")
    buttons = (
        tag(
            "button",
            tag("i", style=f"background:{colour(each)}"),
            f"Delete head {each}",
            type="button",
            css="btn",
            aria_pressed="true" if each == head else "false",
            data_set="deleted",
            data_value="none" if each == head else str(each),
        )
        for each in range(asked.config.heads)
    )
    return join([drawn, tag("div", *buttons, css="buttons"), says(_deletion_says(run, head))])


def population(asked: Question, found: PopulationSummary | None) -> Markup:
    """Pr(E) against the theorem, and the winners' table."""
    if found is None:
        return says("How often does one head carry the conflict alone? Train many seeds to see.")
    heads, n = asked.config.heads, found.n_seeds - found.n_diverged
    share, standard_error = formats.percent(found.pr_event), formats.percent(found.pr_event_se)
    power = asked.config.beyond.n_tasks
    against = f"(({heads}−1)/{heads}){'²' if power == 2 else f'^{power}'} = {formats.percent(found.pr_event_predicted)} %"
    big = figure(
        "Runs on event E: U's winner wins no other feature",
        share,
        unit=f"% against {against}",
        below=f"standard error {standard_error}, n = {formats.count(n)} runs",
    )
    columns = [Column("Won by"), *(Column(name, "n") for name in asked.config.feature_names)]
    won = zip(*found.winners_table, strict=True)
    rows = [Row([_key(head), *map(formats.count, row)]) for head, row in enumerate(won)]
    lost = f"{formats.count(found.n_diverged)} of {formats.count(found.n_seeds)} runs diverged and are left out."
    parts = [big, says(toy_words.population_says(asked, found)), table(columns, rows, "winners")]
    parts.append(says(toy_words.winners_say(asked, found)))
    if found.n_diverged:
        parts.append(tag("p", lost, css="sub says harm"))
    return join(parts)


def job_bar(kind: str, job: Job | None, known: bool, label: str, asked: Question) -> Markup:
    """Where a computation stands: its button before, its progress and Stop while it runs, how it ended."""
    begin = tag("button", label, type="button", css="btn", data_act=kind)
    stop = tag("button", "Stop", type="button", css="btn", data_act=f"stop {kind}")
    if job is not None and not job.ended:
        if job.stopping:
            state = "stopping"
        elif job.began_s is None:
            state = "waiting for its turn"
        else:
            left = job.left_s
            state = f"{WORKING[kind]}, {100 * job.share:.0f} %"
            state += f", {formats.duration(left)} left" if left is not None else ""
        bar = progress(round(1000 * job.share), 1000, f"{WORKING[kind]}, {100 * job.share:.0f} %")
        return tag("div", tag("div", bar, tag("span", state, css="sub"), css="grow"), stop, css="job")
    if job is not None and job.problem:
        return tag("div", tag("span", f"{job.problem[:1].upper()}{job.problem[1:]}.", css="sub harm grow"), begin, css="job")
    if known or (job is not None and job.done):
        return Markup()
    stopped = job is not None and job.stopped
    state = f"Stopped at {100 * job.share:.0f} %." if stopped else f"About {formats.duration(expected_s(kind, asked))}."
    return tag("div", begin, tag("span", state, css="sub"), css="job")


def phase_map(asked: Question, cells: Sequence[PhaseCell]) -> Markup:
    """The map as far as it is computed: each cell has its number, and the rest of what it knows on hover."""
    known = {(cell.x, cell.y): cell for cell in cells}
    drawn: list[Markup] = []
    for y in reversed(asked.y.values):
        drawn.append(tag("span", f"{y:g}", css="ax"))
        drawn += [_cell(asked, x, y, known.get((x, y))) for x in asked.x.values]
    drawn.append(tag("span", css="ax"))
    drawn += [tag("span", f"{x:g}", css="axc") for x in asked.x.values]
    across, up = (SETTING_NAMES.get(axis.setting, axis.setting) for axis in (asked.x, asked.y))
    label = f"Map of {MEASURES[asked.measure]} over {across} and {up}, {len(cells)} cells computed"
    grid = tag("div", *drawn, css="phase", style=f"--columns:{len(asked.x.values)}", role="img", aria_label=label)
    sides = tag("div", tag("span", f"↑ {up}"), tag("span", f"{across} →"), css="axes")
    return join(
        [tag("div", measures(asked.measure), tag("span", MEASURES[asked.measure], css="sub"), css="tools bare"), grid, sides]
    )


def map_says(asked: Question, cells: Sequence[PhaseCell]) -> str:
    """What the map shows."""
    text = (
        "A head is worth removing where that lowers some task's risk by more than a tenth of t². The theorem speaks of the "
        "corner of small alpha and eta, where on E the gain is t²; everywhere else this map is an experiment."
    )
    shares = [cell.pr_beneficial for cell in cells if cell.pr_beneficial is not None]
    lost = sum(cell.diverged_share == 1 for cell in cells)
    if shares:
        n_runs = formats.count(asked.n_cell_seeds)
        low, high = formats.percent(min(shares)), formats.percent(max(shares))
        text += f" Here {low} to {high} % of runs have one, n = {n_runs} runs a cell."
    return text + (f" In {lost} cells every run diverged." if lost else "")


def demo(records: Sequence[SearchRecord]) -> Markup:
    """The same trade in a trained transformer: the demo search, else another of the demo model, or how to run it."""
    done = [r for r in records if r.config.model == "demo" and r.status is Status.DONE and r.held_out and r.frozen_set]
    done.sort(key=lambda r: (not is_demo(r.config), r.config.task != "carry"))  # newest first within
    found = next(iter(done), None)
    if found is None or found.held_out is None or found.frozen_set is None:
        how = join(["Run it with ", command("python -m cel_core demo"), "; it takes about a minute and appears here."])
        return tag(
            "p",
            "The demo model adds with and without carry, from one prompt, and its heads make the same trade. ",
            how,
            css="sub",
        )
    held, n = found.held_out, found.held_out.n
    title = TASKS[found.config.task].title if found.config.task in TASKS else found.config.task
    below = f"{title}, n = {formats.count(n)} held-out, without {formats.heads(found.frozen_set)}"
    parts = [
        figure(
            "Accuracy, intact → ablated",
            f"{formats.percent(held.intact_accuracy, n)} → {formats.percent(held.ablated_accuracy, n)}",
            unit="%",
            below=below,
        )
    ]
    other = {"carry": "no-carry", "no-carry": "carry"}.get(found.config.task, "")
    twin = next((r for r in done if r.config.task == other and r.frozen_set == found.frozen_set), None)
    if twin is not None and twin.held_out is not None:
        m, share = twin.held_out.n, twin.held_out
        intact, ablated = formats.percent(share.intact_accuracy, m), formats.percent(share.ablated_accuracy, m)
        parts.append(says(f"The other task pays: {other} goes {intact} → {ablated} % with the same heads removed."))
    elif other:
        heads = formats.heads(found.frozen_set).replace(", ", ",")
        what = command(f"python -m cel_core evaluate --model demo --task {other} --heads {heads}")
        parts.append(tag("p", "What the other task pays, with the same heads removed: ", what, css="sub says"))
    parts.append(tag("p", tag("a", "Open the demo search", href=f"/search?run={found.id}"), css="sub says"))
    return join(parts)


def diverged(run: Trajectory) -> Markup:
    """A run that left every bound."""
    shown = f"The curves end at step {formats.count(int(run.steps[-1]))}, its last state in bounds."
    return notice(
        f"The run diverged: by step {formats.count(run.diverged_by or 0)} a coefficient had left every reasonable bound",
        f"{shown} Choose a smaller eta, a smaller initialisation, or another seed.",
        css="bad wide",
    )


def outside(labels: Sequence[str]) -> Markup:
    """The switches that are on, said plainly."""
    text = "No proof covers this model. The theorems' values stay beside the measured ones for comparison only."
    return notice(f"Outside the theorems: {', '.join(labels)}", text, css="flat wide")


def _cell(asked: Question, x: float, y: float, cell: PhaseCell | None) -> Markup:
    where = f"{asked.x.setting} {x:g}, {asked.y.setting} {y:g}"
    if cell is None:
        return tag("span", css="pcell none", data_tip=f"{where}\nnot computed yet")
    if cell.problem:
        return tag("span", "×", css="pcell none", data_tip=f"{where}\n{cell.problem[:160]}")
    if cell.pr_beneficial is None or cell.pr_event is None or cell.converged_share is None:
        return tag("span", "div.", css="pcell none", data_tip=f"{where}\nevery run diverged")
    shares = {"beneficial": cell.pr_beneficial, "event": cell.pr_event, "converged": cell.converged_share}
    a = x if asked.x.setting == "a" else y if asked.y.setting == "a" else asked.config.a
    if asked.measure == "gain":
        gain = cell.median_gain
        text, strength = ("–", 0.0) if gain is None else (f"{gain:.2f}", gain / (a / 2) ** 2)
    else:
        text, strength = formats.percent(shares[asked.measure]), shares[asked.measure]
    gain_line = "no such run" if cell.median_gain is None else f"{cell.median_gain:.4g}, t² = {(a / 2) ** 2:.4g}"
    tip = (
        f"{where}\nworth removing {formats.percent(cell.pr_beneficial)} % (standard error "
        f"{formats.percent(cell.pr_beneficial_se or 0)})\nmedian gain {gain_line}\non E {formats.percent(cell.pr_event)} %\n"
        f"converged {formats.percent(cell.converged_share)} %, diverged {formats.percent(cell.diverged_share or 0)} %\n"
        f"n = {formats.count(cell.n_seeds)} runs"
    )
    amount = round(100 * min(1.0, max(0.0, strength)))
    return tag(
        "span",
        text,
        css=f"pcell{' strong' if amount > 55 else ''}{' full' if amount > 75 else ''}",
        style=f"--t:{amount}",
        data_tip=tip,
    )


def _head_name(head: int) -> Markup:
    return tag("span", tag("i", style=f"background:{colour(head)}"), f"Without head {head}", css="headkey")


def _key(head: int) -> Markup:
    return tag("span", tag("i", style=f"background:{colour(head)}"), f"head {head}", css="headkey")


def _deletion_says(run: Trajectory, head: int | None) -> str:
    winner = int(run.winners[0])
    if run.diverged:
        return "The run diverged: these are the risks at its last state in bounds, and the theorem does not speak of it."
    if run.config.beyond.labels:
        return "Outside the theorems: the last row is what the proven model does at its optimum, for comparison."
    if head is None:
        return f"Nothing is deleted. Head {winner} holds the shared feature: delete it and see which task gains."
    t2 = (run.config.a / 2) ** 2
    if head != winner:
        return f"The theorem speaks of head {winner}, the winner of the shared feature; head {head} is another one."
    if not bool(in_event(run.winners)):
        return (
            f"Not on E: head {head} holds the shared feature and a task's own as well, so that deleting it costs that task "
            "more than the conflict did. The theorem does not speak of this run; the last row is what it says on E."
        )
    return (
        f"On E the theorem says that A falls by t² = {t2:.4g}, B rises by 3t² = {3 * t2:.4g} and the joint risk by t²/2 = "
        f"{t2 / 2:.4g}: the head serves the compromise, and A is better off without it."
    )
