"""What holds for every part of the page: widths, contrast, keyboard, screen readers."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.ui.browser import ask, visit, wait_for_end, wait_for_reply
from tests.ui.fakes import REPLY

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent / "axe" / "axe.min.js"


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(320, "dark"), (390, "light"), (768, "dark"), (1440, "light"), (2560, "dark")],
)
def test_every_width_shows_everything_without_scrolling_sideways(
    browser: Browser, url: str, width: int, scheme: str
) -> None:
    size = {"width": width, "height": 844}
    with visit(browser, url, viewport=size, color_scheme=scheme) as page:
        ask(page, "x" * 300)
        wait_for_reply(page, REPLY)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.documentElement.scrollHeight") <= 844
        for part in ("#conversation", "[data-part=talk]", "#send", "#new", "[data-part=tpot-p50]"):
            box = page.locator(part).bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
            assert box["y"] >= 0 and box["y"] + box["height"] <= 844
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, dark[4:-1].split(","))) < 64) == (scheme == "dark")


@pytest.mark.parametrize("width", [390, 1024, 2560])
def test_every_tab_fits_every_width(browser: Browser, url: str, width: int) -> None:
    with visit(browser, url, viewport={"width": width, "height": 844}) as page:
        ask(page, "Why?")
        wait_for_end(page)
        for tab, button in RUNS.items():
            page.get_by_role("tab", name=tab).click()
            page.get_by_role("button", name=button).click()
            page.wait_for_selector(".tabitem:not([style*=none]) [data-playing=false]")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            lanes = page.locator(".lanes:visible").bounding_box()
            assert lanes is not None and lanes["x"] >= 0 and lanes["x"] + lanes["width"] <= width


# What each tab shows something of when it is pressed.
RUNS = {
    "Race": "Start the race",
    "Speed dial": "Replay the last answer",
    "Blind test": "Start a trial",
}


def test_text_has_contrast(browser: Browser, url: str) -> None:
    for scheme in ("light", "dark"):
        with visit(browser, url, color_scheme=scheme) as page:
            ask(page, "Why?")
            wait_for_reply(page, REPLY)
            page.wait_for_function("!unpaused.active")
            ratios = page.evaluate(CONTRAST)
            assert len(ratios) > 15
            assert min(ratios.values()) >= 4.5, sorted(ratios.items(), key=lambda r: r[1])[:3]


# Contrast of every visible text with what is painted behind it, by WCAG's formula.
CONTRAST = """() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const ratios = {};
  for (const element of document.querySelectorAll('#app *')) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim());
    const style = getComputedStyle(element);
    const hidden = style.visibility === 'hidden' || element.getClientRects().length === 0;
    if (hidden || !text.join('') || element.closest('.sr-only, .hide')) continue;
    const pair = [channels(style.color), behind(element)].map(luminance).sort((a, b) => b - a);
    const name = element.tagName + ' ' + text.join(' ').slice(0, 40);
    ratios[name] = (pair[0] + 0.05) / (pair[1] + 0.05);
  }
  return ratios;
}"""


# What the tabulator reaches, in this order, in each tab once there is an answer.
HEADER = ["Kernel per op", "New conversation"]
CONTROLS = {
    "Talk": [*HEADER, "Talk", "Again on", "Engine to repeat the last answer on", "Hands-free",
             "Sound", "Hold to talk", "Message", "Send"],
    "Race": [*HEADER, "Race", "Prompt", "Engine 1", "Engine 2", "Start the race", "Stop"],
    "Speed dial": [*HEADER, "Speed dial", "750", "Or any, tokens/s", "Replay the last answer"],
    "Blind test": [*HEADER, "Blind test", "Prompt", "Engine 1", "Engine 2", "Start a trial"],
    "Anatomy": [*HEADER, "Anatomy", "Measured on"],
}  # fmt: skip


@pytest.mark.parametrize("tab", CONTROLS)
def test_every_control_is_reached_by_the_keyboard_has_a_name_and_shows_focus(
    page: Page, tab: str
) -> None:
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    page.wait_for_function("!unpaused.active")
    page.get_by_role("tab", name=tab).click()
    page.wait_for_selector(".tabitem:not([style*=none]) :is(button, input):visible")
    page.mouse.click(1, 1)  # from the top
    wanted, names = CONTROLS[tab], list[str]()
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outlined = page.evaluate(FOCUSED)
        assert outlined or name not in wanted, name
        names.append(name)
    reached = [name for name in dict.fromkeys(names) if name in wanted]
    assert reached == wanted, names


# The name of the element that has the focus, and whether that can be seen.
FOCUSED = """() => {
  const at = document.activeElement;
  const label = at.labels && at.labels[0] && at.labels[0].innerText;
  const ring = [at, at.closest('label'), at.closest('#write'), at.closest('.wrap')].filter(Boolean)
    .some((e) => getComputedStyle(e).outlineStyle !== 'none');
  return [(at.ariaLabel || label || at.innerText || '').trim(), ring];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, url: str, scheme: str) -> None:
    """axe-core by Deque, on every tab: before there is anything, and after."""
    with visit(browser, url, AXE.read_text(), color_scheme=scheme) as page:
        findings = scan(page, "empty")
        ask(page, "Why?")
        wait_for_end(page)
        page.get_by_role("button", name="Again on").click()
        page.wait_for_selector("#duel [data-playing=false]")
        for tab, button in RUNS.items():
            page.get_by_role("tab", name=tab).click()
            page.get_by_role("button", name=button).click()
            page.wait_for_selector(".tabitem:not([style*=none]) [data-playing=false]")
            findings += scan(page, tab)
        page.get_by_role("tab", name="Anatomy").click()
        page.wait_for_selector("#machine .notice p, #machine img")
        findings += scan(page, "Anatomy")
        page.get_by_role("tab", name="Talk").click()
        page.get_by_role("button", name="Think before speaking").click()
        page.wait_for_selector("#hidden input")
        findings += scan(page, "Talk")
    assert not findings, "\n".join(findings)


def scan(page: Page, where: str) -> list[str]:
    """What axe calls serious or critical, by WCAG 2.2 A and AA and its own best practices."""
    found = page.evaluate(
        """() => axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa',
          'wcag22aa', 'best-practice']})"""
    )
    return [
        f"{where}: {rule['id']} ({rule['impact']}): {node['html'][:160]} {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"][:4]
    ]
