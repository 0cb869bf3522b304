"""TOK001: counts of ids without a text, and the effect of mitigations; with the engine in a cell."""

import json

import pytest

from repro.base import InapplicableError
from repro.drivers import whole_engine
from repro.issues import REPROS
from repro.issues import tok001 as repro
from tests.cells import run_in_cell


def test_an_id_at_the_tokenizers_end_has_no_text():
    """The last token is in, the first row beyond it is out."""
    work = repro.count_with_text(
        [0, repro.TOKENS - 1, repro.TOKENS, whole_engine.VOCABULARY - 1], "and so on"
    )
    assert (work.finished, len(work.due)) == (2, 4)
    assert work.describe() == "2 of 4 sampled tokens have a text; and so on"


def test_allowed_and_biased_ids_are_one_anothers_rest():
    """Together they are all rows of the model."""
    allowed = repro._mitigation_params("allowed_ids")["allowed_token_ids"]
    biased = repro._mitigation_params("logit_bias")["logit_bias"]
    assert sorted([*allowed, *biased]) == list(range(whole_engine.VOCABULARY))
    assert repro._mitigation_params(None) == {}


@pytest.mark.slow  # it imports transformers
def test_the_tokenizer_gives_its_words_back():
    """A later loss of tokens comes from ids without a word, for no other reason."""
    words = repro.tokenizer()
    ids = list(range(repro.TOKENS))
    assert len(words) == repro.TOKENS
    assert words(words.decode(ids), add_special_tokens=False).input_ids == ids
    assert words(words.decode([5, repro.TOKENS, 6]), add_special_tokens=False).input_ids == [5, 6]


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("if max_input_id > tokenizer.max_token_id:", False),
        ("max_input_id > max(tokenizer.max_token_id,", True),
    ],
)
def test_a_release_that_takes_every_row_is_inapplicable(monkeypatch, source, refused):
    """It is read off the check; where ids are refused, keeping them is no way out."""
    monkeypatch.setattr(repro.upstream, "source", lambda _: source)
    with pytest.raises(InapplicableError, match="every id" if refused else "the ids are what is refused"):
        REPROS["TOK001"].trigger("fed_back").run("token_ids")


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_the_real_engine_samples_them_and_the_text_loses_them():
    """vLLM 0.31.0: 8 of 72 tokens have no text, none when the rows are cut off."""
    arguments = ["TOK001", "--mitigation", "trimmed_model", "--timeout", "250", "--json"]
    done = run_in_cell("vllm-0.31.0+trl-1.16.0", "-m", "repro", "run", *arguments, timeout_s=900)
    result = {
        (a["trigger"], a["mitigation"]): a for a in json.loads(done.stdout)["codes"]["TOK001"]["attempts"]
    }
    bare = result["sampled", None]
    assert (bare["outcome"], bare["finished"], bare["expected"]) == ("reproduced", 64, 72)
    assert "72 tokens sampled, 64 came back" in result["re_encoded", None]["detail"]
    assert result["fed_back", None]["outcome"] == "inapplicable"
    for trigger in ("sampled", "re_encoded"):
        assert result[trigger, "trimmed_model"]["outcome"] == "mitigated"
