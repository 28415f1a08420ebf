"""Fingerprint of an error: the text that messages have in common which failed for one reason. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_FINGERPRINT", "fingerprint"]

MAX_FINGERPRINT: Final = 200
"""Characters of the longest fingerprint: so long is its column."""
_LOOKED_AT: Final = 2_000
"""Characters of an error that are looked at. Whoever wrote it may have meant to make this take long."""

# Every repetition is bounded, or cannot be tried in two ways. What stands first wins: a date is no number. A number is
# a status only where the words around it say so: in `/charges/305` and `customer 404` it names one thing of many. In
# `charge 305: Payment declined` too, because 305 is not the status of that name.
_VARYING: Final = re.compile(
    r"""
    (?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]{0,20}://)[^\s/?\#'"`<>]{1,300}
    | (?P<query>(?<=[\w/])\?[\w.~%+-]{1,100}=[^\s"'`<>()]{0,500})
    | (?P<quoted>(?<!\w)(?P<quote>['"`])(?:(?!(?P=quote)).){1,500}(?P=quote)(?!\w))
    | (?P<curly>“[^”]{1,500}”|«[^»]{1,500}»|‘[^’]{1,500}’)
    | (?P<email>(?<![\w.+-])[\w+-][\w.+-]{0,100}@[a-zA-Z0-9][a-zA-Z0-9.-]{0,200}\.[a-zA-Z]{2,20}\b)
    | (?P<id>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b0[xX][0-9a-fA-F]{1,100}\b)
    | (?P<time>
        \b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?[ ])?\d{1,2}[ ](?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[ ]\d{4}
          (?:[ ]\d{2}:\d{2}(?::\d{2})?)?(?:[ ](?:GMT|UTC|[+-]\d{4}))?
        | \b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[ ])?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[ ]\d{1,2}\b
          (?:[ ]\d{2}:\d{2}:\d{2}(?:[ ]\d{4})?)?
        | \b\d{4}/\d{2}/\d{2}(?:[ ]\d{2}:\d{2}:\d{2})?
        | \b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:[ ]?(?:Z\b|UTC\b|[+-]\d{2}:?\d{2}))?)?
        | \b\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?)
    | (?P<host>
        \b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5}\b)?
        | \[(?=[0-9a-fA-F]{0,4}:)[0-9a-fA-F:.%]{2,60}\](?::\d{1,5}\b)?
        | (?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}(?![\w:])
        | (?<![\w.-])[a-zA-Z][\w.-]{0,252}:\d{2,5}\b)
    | (?P<token>\b(?=[a-zA-Z_-]{0,99}\d)[\w-]{20,500}\b|\b(?=[a-fA-F]{0,99}\d)(?=\d{0,99}[a-fA-F])[0-9a-fA-F]{8,100}\b
        |\b(?=[a-zA-Z]{0,30}\d{1,30}[a-zA-Z]{1,30}\d)[a-zA-Z0-9]{5,64}\b|\b(?=[a-zA-Z]{1,30}\d{1,30}[a-zA-Z])[A-Z0-9]{6,64}\b
        |\b[a-zA-Z]{2,12}_(?=[a-zA-Z]{0,40}\d)(?=[a-z0-9]{0,40}[A-Z])[A-Za-z0-9]{8,64}\b)
    | (?P<status>
        (?:\b(?:[Hh](?:TTP|ttp)(?:/\d(?:\.\d)?)?|[Aa]nswer(?:ed|s)|[Rr]esponded(?:[ ]with)?|[Rr]eplied(?:[ ]with)?
             |(?:[Uu]nexpected[ ])?(?:[Ss]tatus(?:[ _-]?[Cc]ode)?|[Rr]esponse)|statusCode|[Cc]ode(?=[:=])
             |(?:[Ee]rror|[Rr]esponse|[Rr]eply|[Ee]xit|[Rr]eturn)[ _-]?[Cc]ode|SMTP|AMQP|[Ee]rrno|[Ee]rror
             |(?:HTTP|Http|Client|Server|Response|Status|Request|A(?:PI|pi))[A-Za-z]{0,30}(?:Error|Exception|Status))
           (?:[ ]?[:=\(\[-][ ]?|[ ](?:was[ ]|is[ ]|of[ ])?)
         |\b(?:[Rr]eturn(?:ed|s)|[Gg]ot|[Rr]eceived|(?:[Ff]ailed|[Rr]ejected|[Rr]efused)[ ]with)[ ]
           (?=\d{3}(?:[:;,.)]|$|[ ][A-Z]|[ ]from\b))
         |(?:\b[A-Z][A-Z_]{2,40}|\b[A-Z][a-z]{1,20}(?:[ ][A-Z][a-z]{1,20}){1,3}
             |\b(?:Unauthorized|Forbidden|Conflict|Gone|Response)|^)[ ]?[\(\[](?=\d{3}[)\]]))
        [1-5]\d\d(?![\w-]|[.,]\d|[ ]?%|[ ]?(?:[mun]?s|seconds?|minutes?|hours?|days?|bytes?|[kKMG]i?B)\b
          |[ ](?:rows?|records?|items?|lines?|messages?|orders?|times)\b)
        |^[1-5]\d\d(?=[:,]?[ ](?:[A-Z]|(?:not[ ]found|forbidden|bad[ ]request|unauthorized|gone|conflict)\b))
        |(?<![\w/.,:\#-])(?:[1-5]\d\d(?=[:,]?[ ](?:[A-Z][A-Z_]{3,40}\b|(?:Client|Server)[ ]Error))
           |301(?=[:,]?[ ]Moved)|302(?=[:,]?[ ]Found)|307(?=[:,]?[ ]Temporary)|308(?=[:,]?[ ]Permanent)
           |400(?=[:,]?[ ]Bad[ ]Request)|401(?=[:,]?[ ]Unauthorized)|402(?=[:,]?[ ]Payment)|403(?=[:,]?[ ]Forbidden)
           |404(?=[:,]?[ ](?:Not[ ]Found|page[ ]not[ ]found\b))|405(?=[:,]?[ ](?:Method|Not[ ]Allowed))
           |406(?=[:,]?[ ]Not[ ]Acceptable)|409(?=[:,]?[ ]Conflict)|410(?=[:,]?[ ]Gone)|421(?=[:,]?[ ]Misdirected)
           |4(?:08|14|31)(?=[:,]?[ ]Request)|413(?=[:,]?[ ](?:Payload|Content|Request)[ ](?:Entity[ ])?Too)
           |415(?=[:,]?[ ]Unsupported)|417(?=[:,]?[ ]Expectation)|422(?=[:,]?[ ]Unprocessable)
           |423(?=[:,]?[ ]Locked)|42[59](?=[:,]?[ ]Too[ ](?:Many|Early))|4(?:12|28)(?=[:,]?[ ]Precondition)
           |500(?=[:,]?[ ]Internal)|501(?=[:,]?[ ]Not[ ]Implemented)|502(?=[:,]?[ ]Bad[ ]Gateway)
           |503(?=[:,]?[ ]Service)|504(?=[:,]?[ ]Gateway)|507(?=[:,]?[ ]Insufficient)))
    | (?P<negative>(?<![\w.,)\]-])-(?=\d))
    | (?P<number>\d{1,500}(?:[.,]\d{1,500}){0,10})
    """,
    re.VERBOSE,
)
_PLACEHOLDERS: Final = {"id": "<id>", "token": "<id>", "time": "<time>", "host": "<host>", "number": "#",
                         "email": "<email>"}  # fmt: skip


def fingerprint(error: str) -> str:
    """Return the error without what differs from message to message, in at most 200 characters.

    Ids, hexadecimal numbers, addresses of hosts and mailboxes, times, queries of URLs, quoted values and numbers are
    replaced by a word each. A number from 100 to 599 stays where the text says that it is the status of an answer, as
    in `answered 503`, `status=404` or `404 Not Found`: it says why the message failed.
    """
    text = " ".join(_to_printable(error[:_LOOKED_AT]).split())
    text = _VARYING.sub(_replace, text)
    return text if len(text) <= MAX_FINGERPRINT else f"{text[: MAX_FINGERPRINT - 1]}…"


def _replace(found: re.Match[str]) -> str:
    kind = found.lastgroup
    if found["scheme"] is not None:
        return f"{found['scheme']}<host>"
    if kind == "query":
        return "?…"
    if kind == "negative":
        return ""
    if found["curly"] is not None:
        return f"{found[0][0]}…{found[0][-1]}"
    if found["quoted"] is not None:
        return f"{found['quote']}…{found['quote']}"
    return found[0] if kind is None or kind == "status" else _PLACEHOLDERS[kind]


def _to_printable(text: str) -> str:
    """Replace what no line of text and no database takes: control characters, NUL, halves of characters."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
