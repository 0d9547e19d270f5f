"""The plan of a search and the environment that produced it, for whoever repeats it."""

from cel_core.records import SearchRecord
from pages import formats, headline
from pages.markup import Markup, join, tag


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
        ("Rows", config.data or "default source"),
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
