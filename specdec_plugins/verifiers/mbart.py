"""``mbart``: mBART of 25 and of 50 languages, whose directions are chosen by ``-s`` and ``-t``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from fairseq.data.multilingual.multilingual_utils import LangTokStyle

from specdec_plugins.files.output import JsonObject
from specdec_plugins.verifiers.family import Tokenizer
from specdec_plugins.verifiers.folder import CONFIG, read_json
from specdec_plugins.verifiers.m2m import M2M, MASK

#: The languages of mBART in fairseq's order; so many are those of the first model.
FIRST = 25
LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL "
    "hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN "
    "th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


class MBart(M2M):
    """Pre-norm, and a norm of embeddings; positions are learned. With 25 languages a source's
    language follows its EOS, and a target begins with its own in place of EOS; with 50 both stand
    where M2M-100 has them."""

    model_type = "mbart"
    options: ClassVar[JsonObject] = {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "layernorm_embedding": True,
    }
    language = re.compile(r"[a-z]{2}_[A-Z]{2}")
    style = LangTokStyle.mbart

    @property
    def source_after_eos(self) -> bool:
        config = read_json(self.folder / CONFIG, Tokenizer)
        name = self.tokenizer.tokenizer_class or config.tokenizer_class
        if name:
            return not name.startswith("MBart50")
        return len(self._languages) <= FIRST

    @property
    def usual(self) -> Sequence[str]:
        count = self.config.vocab_size - len(self._words) - len([MASK])
        return LANGUAGES.split()[:count]

    def tokens(self, side: str) -> Mapping[str, int]:
        return {MASK: len(self._words) + len(self._languages), **super().tokens(side)}
