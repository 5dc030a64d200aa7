"""A few short documents about a house, written for the demonstration of `ask`."""

from __future__ import annotations

__all__ = ["DOCUMENTS", "QUESTION"]

QUESTION = "How long is the notice to end the agreement?"

DOCUMENTS = {
    "contract.txt": (
        "This agreement begins on 1 March. The tenant pays the rent on the first day of each "
        "month. Either side may end the agreement with a notice of 45 days. The notice must be in "
        "writing."
    ),
    "faq.txt": (
        "Questions about heating go to the caretaker. Parking spaces are rented separately. Pets "
        "are welcome if the neighbours agree."
    ),
    "letter.txt": (
        "Dear tenant, the lift will be repaired in June. Please use the stairs. We are sorry for "
        "the trouble this causes."
    ),
    "rules.txt": (
        "Quiet hours are from ten in the evening to six in the morning. Bicycles are kept in the "
        "cellar. The laundry room may be used on weekdays."
    ),
    "minutes.txt": (
        "The owners met in April. They agreed to plant two trees in the yard. The new roof costs "
        "more than was planned, and the work begins after the summer."
    ),
}
