"""TOK001 counts ids without a token, checks its mitigations, and reproduces on the engine in a cell.

TOK001: the model's vocabulary is larger than the tokenizer's, so the engine samples ids without a text.
"""

import pytest

from repro.base import InapplicableError
from repro.drivers import whole_engine
from repro.issues import REPROS
from repro.issues import tok001 as repro
from tests.cells import attempts_in_cell


def test_ids_beyond_the_tokenizer_have_no_text():
    """The last id of the tokenizer has a text, and the first id beyond has none."""
    ids = [0, repro.TOKENS - 1, repro.TOKENS, whole_engine.VOCABULARY - 1]
    work = repro.count_with_text(ids)
    assert (work.finished, len(work.due)) == (2, 4)
    assert work.describe() == "2 of 4 sampled tokens have a text"


def test_allowed_and_biased_ids_cover_the_model():
    allowed = repro.mitigation_params("allowed_ids")["allowed_token_ids"]
    biased = repro.mitigation_params("logit_bias")["logit_bias"]
    assert sorted([*allowed, *biased]) == list(range(whole_engine.VOCABULARY))
    assert repro.mitigation_params(None) == {}


@pytest.mark.slow  # it imports transformers
def test_tokenizer_round_trips_its_words():
    """Decoded and encoded again, the tokenizer's ids are unchanged; only ids without a token are lost."""
    words = repro.tokenizer()
    ids = list(range(repro.TOKENS))
    assert len(words) == repro.TOKENS
    assert words(words.decode(ids), add_special_tokens=False).input_ids == ids
    assert words(words.decode([5, repro.TOKENS, 6]), add_special_tokens=False).input_ids == [5, 6]


def test_id_check_is_read_from_the_source(monkeypatch):
    """A release that accepts every id of the model makes the trigger inapplicable."""
    monkeypatch.setattr(repro.upstream, "source", lambda _: "max_input_id > max(tokenizer.max_token_id,")
    with pytest.raises(InapplicableError, match="every id"):
        REPROS["TOK001"].trigger("fed_back").run(None)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_real_engine_samples_ids_without_a_token():
    """In vLLM 0.31.0, 8 of 72 tokens have no text; with the extra rows cut off, all have one."""
    options = ("--mitigation", "trimmed_model", "--timeout", "250")
    attempts = attempts_in_cell("vllm-0.31.0+trl-1.16.0", "TOK001", *options)
    bare = attempts["sampled", None]
    assert (bare["outcome"], bare["finished"], bare["expected"]) == ("reproduced", 64, 72)
    assert "72 tokens sampled, 64 came back" in attempts["re_encoded", None]["detail"]
    assert attempts["fed_back", None]["outcome"] == "inapplicable"
    for trigger in ("sampled", "re_encoded"):
        assert attempts[trigger, "trimmed_model"]["outcome"] == "mitigated"
