"""What a model writes itself for one example, with and without heads: ``/explain``, asked by an open example.

The model has to run for it, so the example is shown first and this is put in when it comes.
"""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from cel_core.errors import CelError
from cel_core.heads import HeadSet
from cel_core.records import SearchRecord
from cel_core.tasks import TASKS, Scoring
from cel_core.worker import Worker
from pages import layout
from pages.markup import Markup, join, tag

WAITING = "Waiting for the model to write it itself."


def place(record: SearchRecord, example: str, head_set: HeadSet, at_once: bool = True) -> Markup:
    """The place of an explanation, for tasks whose answer the model writes or whose prompt a template wraps.

    Args:
        record: the search.
        example: the example's key.
        head_set: the heads that are ablated.
        at_once: whether it is asked for as soon as the place is drawn, or with a button: a model may have to be loaded.
    """
    task = TASKS.get(record.config.task)
    if task is None or not (task.scoring == Scoring.GREEDY or record.config.chat_template):
        return Markup()
    asked = {"run": record.id, "example": example, "heads": str(head_set)}
    asked |= {"template": "1"} if record.config.chat_template else {}
    address = f"/explain?{urlencode(asked)}"
    waiting = join([tag("div", WAITING, css="k over"), tag("div", tag("i"), css="prog unknown")])
    if at_once:
        return tag("div", waiting, css="written", data_fetch=address, aria_live="polite")
    button = tag("button", "Let the model write both answers out", type="button", css="btn", data_asks=True)
    return tag("div", button, tag("template", waiting), css="written", data_ask=address, aria_live="polite")


def show(said: dict[str, str], template: bool, head_set: HeadSet) -> Markup:
    """The model's own words, and the prompt as it read it where a template wraps it."""
    parts: list[Markup] = []
    if template:
        parts += [tag("div", "The prompt as the model reads it", css="k over"), tag("pre", said["prompt"])]
    if said["intact"] or said["ablated"]:
        rows = [
            join([tag("dt", name), tag("code", text.strip() or "(nothing: it ends here)", css="said")])
            for name, text in (("Intact", said["intact"]), ("Ablated" if head_set else "No head off", said["ablated"]))
        ]
        parts += [
            tag("div", "What the model writes itself, to the end of the line", css="k over"),
            tag("dl", *rows, css="pair"),
        ]
    return join(parts)


def routes(worker: Worker) -> list[BaseRoute]:
    """The route that open examples ask."""

    def explain(request: Request) -> Response:
        asked = request.query_params
        try:
            head_set = HeadSet.parse(asked.get("heads", ""))
            said = worker.explain(asked.get("run", "")[:40], asked.get("example", "")[:80], head_set)
        except CelError as error:
            return HTMLResponse(layout.explained(error))
        return HTMLResponse(show(said, "template" in asked, head_set))

    return [Route("/explain", explain)]
