"""Prompts of the speculation benchmark: replies that repeat their prompt, and replies that do not.

The copy-heavy ones are edits, summaries and corrections that SmolLM2-135M answers by copying, as it
was seen to. (It rewrites a Python function rather than edit it, so there is none here.) The chat
ones are questions whose greedy answers do not fall into a loop, which drafts would gain from.
"""

from __future__ import annotations

_STORY = (
    "The lighthouse stood on a small rock far from the shore. Every evening the keeper climbed the "
    "narrow stairs, cleaned the glass and lit the lamp. In winter the waves were higher than the "
    "door, and no boat could come near for weeks. The keeper wrote letters that nobody collected, "
    "and read the same three books again and again. When the lamp was made electric, the keeper "
    "moved to the village, but on stormy nights he still looked out to see whether the light was "
    "burning."
)
_NOTES = (
    "The meeting began at nine. Maria said that the new bridge will be closed for repairs from "
    "Monday to Friday, and that all buses will use the road along the river. Tom asked whether the "
    "school bus can stop at the old mill, and Maria promised to ask the driver. The next meeting "
    "is on the first Tuesday of May, at nine, in the town hall."
)
_RECORD = (
    '{"name": "Marie Curie", "born": 1867, "died": 1934, "fields": ["physics", "chemistry"], '
    '"prizes": [{"year": 1903, "field": "physics"}, {"year": 1911, "field": "chemistry"}]}'
)
_MENU = """<ul>
  <li><a href="/home">Home</a></li>
  <li><a href="/products">Products</a></li>
  <li><a href="/prices">Prices</a></li>
  <li><a href="/contact">Contact</a></li>
</ul>
"""
_LIST = """1. Oil the hinges of the front door
2. Water the plants in the kichen
3. Take the parcel to the post office
4. Buy bread, milk and six eggs
5. Call the dentist about Tuesday
6. Feed the cat before eight"""

PROMPTS: dict[str, dict[str, str]] = {
    "copy": {
        "summary": f"Summarize the following text:\n\n{_STORY}",
        "proofreading": f"Proofread this text:\n\n{_NOTES}",
        "spelling": "Correct the spelling of this text and write it out again:\n\n"
        + _STORY.replace("keeper", "keper"),
        "list": f"Sort out the spelling of this list and write it again:\n\n{_LIST}",
        "JSON edit": 'Add the field "country": "France" to this JSON and print the whole JSON:\n\n'
        + _RECORD,
        "HTML edit": "Change the word Prices to Offers in this HTML and show all of it:\n\n"
        f"```html\n{_MENU}```",
    },
    "chat": {
        "capital": "What is the capital of France, and what is it known for?",
        "plants": "How do plants make their food?",
        "sleep": "Why do we need sleep?",
        "tired": "I feel tired today. What can I do?",
        "Newton": "Who was Isaac Newton?",
        "evening": "What should I do in the evening after a long day at work?",
    },
}
