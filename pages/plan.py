"""The plan of a search: in words, for whoever reads it, and with its environment, for whoever repeats it."""

from cel_core.records import SearchRecord
from cel_core.search import n_subsets
from cel_core.tasks import TASKS
from pages import formats, headline
from pages.markup import Markup, join, tag

DEMO = (
    "A small transformer that comes with the project. It learnt two readings of every sum at once, with the carry "
    "(27 + 45 = 72) and without (62), and wavers between them."
)


def in_words(record: SearchRecord) -> Markup:
    """What is asked, and the steps of the search, each with its sizes."""
    config = record.config
    heads = record.screened.removeprefix("approximate screen: ") or f"each of the {formats.count(record.n_heads)} heads"
    n_discovery, n_held_out = formats.count(record.n_discovery), formats.count(record.n_held_out)
    n_tried = formats.count(n_subsets(config.p, config.k))
    until = "" if config.full_sweep else ", or on as many as show that it is not among the best"
    one = f"{heads[:1].upper()}{heads[1:]} ablated alone on {n_discovery} discovery examples{until}. "
    one += f"The {config.p} best are the pool."
    two = f"All {n_tried} subsets of 1 to {config.k} heads of the pool ablated together. The best is frozen."
    last = f"Only then {n_held_out} other examples, intact and without the frozen set: the fair figure."
    steps = [("Stage 1", one), ("Stage 2", two), ("Held-out", last)]
    if config.task in TASKS:
        kinds = f" Kinds: {', '.join(config.kinds)}." if config.kinds else ""
        steps.insert(0, ("Task", f"{TASKS[config.task].about}{kinds}"))
    if config.model == "demo":
        steps.insert(0, ("Model", DEMO))
    return tag("dl", *(join([tag("dt", name), tag("dd", text)]) for name, text in steps), css="card facts words")


def _source(task: str) -> str:
    """Where a task's rows come from where no others are named."""
    hub = TASKS[task].hub if task in TASKS else None
    return f"{hub.path}{f', {hub.config}' if hub.config else ''}, from the hub" if hub else "generated"


def show_plan(record: SearchRecord) -> Markup:
    """The plan and the environment that produced the search."""
    config, model = record.config, record.model
    facts: list[tuple[str, object]] = [
        ("Search", record.id),
        ("Begun", f"{record.created_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("Worked", formats.duration(record.duration_s)),
        ("Model", config.model),
    ]
    if model:
        facts += [
            (
                "Heads",
                f"{model['n_layers']} layers of {model['n_heads']} query heads, {model.get('n_kv_heads', '?')} key-value heads",
            ),
            ("Family", model.get("family", "")),
            ("dtype, device", f"{model.get('dtype', '')} on {model.get('device', '')}"),
        ]
    facts += [
        ("Task", config.task),
        ("Rows", config.data or _source(config.task)),
        ("Discovery, held-out", f"{formats.count(record.n_discovery)}, {formats.count(record.n_held_out)} examples"),
        ("Pool, subset size", f"p = {config.p}, k = {config.k}"),
        ("Seed", config.seed),
        ("Chat template", "yes" if config.chat_template else "no"),
        ("Full sweep", "yes" if config.full_sweep else "no"),
        ("Stage 1", record.screened or "exact: every head"),
        *record.environment.items(),
        ("Same again", tag("code", headline.command_of(config), css="command")),
    ]
    return tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in facts), css="facts padded")
