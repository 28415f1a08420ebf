"""The screen of a status fits a terminal: the destinations are the last to be shortened, `+7 more` counts the rest."""

from __future__ import annotations

from pillarbox.cli._screen import Line, Section, fit_height, merge_alerts, paint_alerts
from pillarbox.contracts.finding import Severity
from pillarbox.operations.alerts import Alert


def alert(destination: str | None, what: str, *, name: str = "oldest", do: str = "Look.") -> Alert:
    return Alert(name=name, severity=Severity.WARNING, destination=destination, what=what, do=do)


def items(count: int, *, worst: int | None = None) -> list[list[Line]]:
    return [[(f"row {n}", Severity.CRITICAL if n == worst else None)] for n in range(count)]


def test_what_has_no_room_is_counted_and_the_worst_stays() -> None:
    sections = [Section([("now", None)]), Section([("destination", None)], items(10, worst=8), "destinations")]
    lines = [text for text, _ in fit_height(sections, 8)]
    assert lines == ["now", "", "destination", "row 8", "row 0", "row 1", "row 2", "+6 more destinations"]


def test_the_destinations_are_shortened_last() -> None:
    sections = [
        Section([("now", None)]),
        Section([("destination", None)], items(3), "destinations"),
        Section([("delivered", None)], items(3), "destinations"),
        Section([("2 relays alive", None)]),
    ]
    assert len(fit_height(sections, None)) == 13
    sections[2:2] = [Section([], items(3), "alerts")]
    for height in range(9, 17):
        lines = [text for text, _ in fit_height(sections, height)]
        assert len(lines) <= height
        assert lines[2:6] == ["destination", "row 0", "row 1", "row 2"]


def test_alerts_of_one_destination_are_one_with_every_remedy_once() -> None:
    found = [
        alert("billing", "4 have failed.", do="Redrive."),
        alert("mail", "It is late."),
        alert("billing", "It is late."),
        alert("billing", "1,204 are due."),
    ]
    assert merge_alerts(found, width=None) == [
        [
            ("WARNING: 4 have failed. It is late. 1,204 are due.", Severity.WARNING),
            ("  Redrive.", None),
            ("  Look.", None),
        ],
        [("WARNING: It is late.", Severity.WARNING), ("  Look.", None)],
    ]
    assert [len(group) for group in merge_alerts(found, width=None, brief=True)] == [2, 2]


def test_alerts_about_no_destination_stay_apart_and_so_do_those_of_two_stores() -> None:
    found = [
        alert(None, "No relay."),
        alert(None, "Stuck."),
        alert("mail", "It is late."),
        alert("mail", "It is late."),
    ]
    merged = merge_alerts(found, stores=["eu", "eu", "eu", "us"], width=None)
    assert [group[0][0] for group in merged] == [
        "WARNING: eu: No relay.",
        "WARNING: eu: Stuck.",
        "WARNING: eu: It is late.",
        "WARNING: us: It is late.",
    ]


def test_the_name_of_a_store_stands_once_before_the_alerts_of_a_destination() -> None:
    found = [alert("mail", "It is late."), alert("mail", "4 have failed.")]
    (merged,) = merge_alerts(found, stores=["eu", "eu"], width=None)
    assert merged[0] == ("WARNING: eu: It is late. 4 have failed.", Severity.WARNING)


def test_a_colon_in_an_alert_is_not_the_name_of_a_store() -> None:
    found = [alert("mail", "It is late."), alert("mail", "3 messages wait: Connection refused")]
    assert len(merge_alerts(found, width=None)) == 1


def test_a_terminal_shows_ten_alerts_and_counts_the_others_and_a_pipe_has_all() -> None:
    found = [alert(f"d{n}", f"d{n} is late.") for n in range(17)]
    assert paint_alerts(found, width=80)[-1] == ("+7 more alerts; --wide shows all", None)
    assert len(paint_alerts(found, width=None)) == 34
    assert paint_alerts(found[:11], width=80)[-1] == ("+1 more alert; --wide shows all", None)


def test_a_destination_without_a_relay_needs_one_remedy() -> None:
    found = [alert("mail", "It is late."), alert("mail", "No relay.", name="unserved", do="Start one.")]
    assert merge_alerts(found, width=None)[0][1:] == [("  Start one.", None)]
