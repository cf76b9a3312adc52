"""The page's parts and what happens between them: the conversation, and the tabs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from ui import panels
from ui.access import Access
from ui.blind_tab import BlindTab
from ui.dial_tab import DialTab
from ui.handlers import Handlers
from ui.handling import QUIET
from ui.machine_tab import MachineTab
from ui.race_tab import RaceTab
from ui.settings import VIEWS
from ui.talk import Talk

if TYPE_CHECKING:
    from ui.services import Services
    from ui.visitors import Visitors


def build(visitors: Visitors, access: Access) -> gr.Blocks:
    """The whole page. What a tab is made of is in its own file."""
    services = visitors.runtime.services
    choices, missing = engine_choices(services)
    handlers = Handlers(visitors)
    with gr.Blocks(title="Unpaused", fill_height=True, fill_width=True) as page:
        session = gr.State("")
        with gr.Column(elem_id="app"):
            warning = gr.HTML("", elem_id="shared", visible=False)
            with gr.Row(elem_id="header"):
                gr.HTML(panels.header(services.model_name), elem_id="name")
                with gr.Column(elem_id="engines"):
                    engine = gr.Radio(
                        choices,
                        value=services.default_engine,
                        label="Engine",
                        elem_id="engine",
                        interactive=True,
                    )
                    gr.HTML(panels.unavailable(missing), elem_id="missing-engines")
                new = gr.Button("New conversation", elem_id="new", size="sm")
            with gr.Tabs(elem_id="views") as views:
                with gr.Tab("Talk", id="talk", elem_id="talk") as talk_tab:
                    talk = Talk(visitors, choices)
                with gr.Tab("Race", id="race", elem_id="race") as race_tab:
                    race = RaceTab(visitors, choices)
                with gr.Tab("Speed dial", id="dial", elem_id="dial") as dial_tab:
                    dial = DialTab(visitors)
                with gr.Tab("Blind test", id="blind", elem_id="blind") as blind_tab:
                    blind = BlindTab(visitors, choices)
                with gr.Tab("Anatomy", id="machine", elem_id="machine") as machine_tab:
                    machine = MachineTab()

        opened = [session, talk.voice, talk.notice, talk.exports, engine]
        opened += [talk.again_on, talk.hidden, views, dial.speed, race.a, race.b, blind.a, blind.b]
        page.load(handlers.open, None, opened, **QUIET)
        page.unload(handlers.unload)
        if access.share:  # whether there is a link is known only once the page is up
            page.load(lambda: open_to_all(access), None, warning, **QUIET)
        tabs = (talk_tab, race_tab, dial_tab, blind_tab, machine_tab)
        for view, tab in zip(VIEWS, tabs, strict=True):
            tab.select(None, None, None, js=panels.remember_view(view), **QUIET)
        engine.input(
            handlers.choose_engine,
            [session, engine],
            [engine, talk.notice, talk.again_on],
            js=panels.remember("engine", services.default_engine),
            **QUIET,
        )
        begun = [talk.conversation, talk.notice, talk.duel]
        new.click(handlers.begin_anew, session, begun, **QUIET)
        talk.connect(session)
        race.connect(session)
        dial.connect(session)
        blind.connect(session)
        machine.connect(machine_tab)
    return page


def engine_choices(services: Services) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The engines as (label, name) that run here, and as (label, why not) the others."""
    choices, missing = [], []
    for entry in services.engines:
        reason = entry.unavailable()
        if reason is None:
            choices.append((entry.label, entry.name))
        else:
            missing.append((entry.label, reason))
    return choices, missing


def open_to_all(access: Access) -> Any:
    """The warning that whoever has the link may come in; hidden while that is not so."""
    return gr.HTML(panels.OPEN_TO_ALL, visible=access.open_to_all)
