"""Language codes as clients write them, and their names in English."""

from collections.abc import Iterable

_NAMES = """
aa Afar|ab Abkhazian|af Afrikaans|ak Akan|am Amharic|an Aragonese|ar Arabic|as Assamese|av Avaric|ay Aymara|az Azerbaijani|ba Bashkir
be Belarusian|bg Bulgarian|bi Bislama|bm Bambara|bn Bengali|bo Tibetan|br Breton|bs Bosnian|ca Catalan|ce Chechen|co Corsican|cs Czech
cu Church Slavic|cv Chuvash|cy Welsh|da Danish|de German|dv Divehi|dz Dzongkha|ee Ewe|el Greek|en English|eo Esperanto|es Spanish
et Estonian|eu Basque|fa Persian|ff Fulah|fi Finnish|fj Fijian|fo Faroese|fr French|fy Western Frisian|ga Irish|gd Scottish Gaelic
gl Galician|gn Guarani|gu Gujarati|gv Manx|ha Hausa|he Hebrew|hi Hindi|hr Croatian|hsb Upper Sorbian|ht Haitian Creole|hu Hungarian
hy Armenian|ia Interlingua|id Indonesian|ig Igbo|is Icelandic|it Italian|iu Inuktitut|ja Japanese|jv Javanese|ka Georgian|kk Kazakh
kl Kalaallisut|km Khmer|kn Kannada|ko Korean|ks Kashmiri|ku Kurdish|kv Komi|kw Cornish|ky Kyrgyz|la Latin|lb Luxembourgish|lg Ganda
ln Lingala|lo Lao|lt Lithuanian|lv Latvian|mg Malagasy|mi Maori|mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese
my Burmese|nb Norwegian Bokmål|nds Low German|ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian|nv Navajo|oc Occitan|om Oromo
or Odia|os Ossetian|pa Punjabi|pi Pali|pl Polish|ps Pashto|pt Portuguese|pt-br Portuguese (Brazil)|qu Quechua|rm Romansh|rn Rundi
ro Romanian|ru Russian|rw Kinyarwanda|sa Sanskrit|sc Sardinian|sd Sindhi|se Northern Sami|sg Sango|si Sinhala|sk Slovak|sl Slovenian
sm Samoan|sn Shona|so Somali|sq Albanian|sr Serbian|ss Swati|st Southern Sotho|su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu
tg Tajik|th Thai|ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana|to Tongan|tr Turkish|ts Tsonga|tt Tatar|tw Twi|ty Tahitian|ug Uyghur
uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|vi Vietnamese|vo Volapük|wa Walloon|wo Wolof|xh Xhosa|yi Yiddish|yo Yoruba|za Zhuang|zh Chinese
zh-hans Chinese (simplified)|zh-hant Chinese (traditional)|zu Zulu
"""
NAMES = dict(entry.split(" ", 1) for line in _NAMES.split("\n") if line for entry in line.split("|"))
AUTO = "auto"
"""In place of a source language: find out which it is."""


def normal_code(code: str) -> str:
    """A language code in small letters with hyphens: ``pt_BR`` is ``pt-br``."""
    return code.strip().lower().replace("_", "-")


def language_name(code: str) -> str:
    """The English name of a language, or the code where none is known."""
    return NAMES.get(code, code)


def listed(codes: Iterable[str]) -> str:
    """Codes for a sentence: ``de, en``."""
    return ", ".join(sorted(codes))
