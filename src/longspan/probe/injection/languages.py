"""Which language a text is in, by its commonest words: enough to see whether a translation is one."""

import re

WORDS = {
    "en": "the a an of and to in is are was were it that this you i he she they we on for with not be as at by from "
    "have has had do does will would can your my his her their our or but if what which who there an",
    "fr": "le la les un une des du de et est sont dans que qui il elle nous vous je ce cette pour avec pas sur au aux "
    "par ne se son sa ses mon ma mes leur ou mais à été être c'est d' l' j' n' s' qu'",
    "de": "der die das den dem des ein eine einen einem und ist sind war nicht mit auf für von zu im in ich du er sie "
    "es wir ihr mein dein sein als auch an bei nach wie oder aber wenn dass",
    "es": "el la los las un una unos de del y es son en que quien yo tú él ella nosotros para con no por su sus mi mis "
    "al se lo como o pero si está están",
    "it": "il lo la gli le un uno una di del della e è sono in che chi io tu lui lei noi per con non da su al mio tuo "
    "suo come o ma se anche",
    "pt": "o a os as um uma de do da dos das e é são em no na que quem eu tu ele ela nós para com não por seu sua meu "
    "ao se como ou mas está",
}
KNOWN = {language: frozenset(words.split()) for language, words in WORDS.items()}
PIECES = re.compile(r"(?:[dljnsmtc]|qu)['’](?=\w)|\w+", re.IGNORECASE)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; French elisions (l', d') are words of their own."""
    return [word.lower().replace("’", "'") for word in PIECES.findall(text)]


def language(text: str) -> str | None:
    """The language with most common words in a text; None if there are none, or if two are equal."""
    counts = {name: sum(word in known for word in words_of(text)) for name, known in KNOWN.items()}
    best = max(counts.values())
    winners = [name for name, count in counts.items() if count == best]
    return winners[0] if best > 0 and len(winners) == 1 else None


__all__ = ["language", "words_of"]
