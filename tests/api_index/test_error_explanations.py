"""`explain_missing` explains an error about a name by the API index.

The error is about a missing name, argument or value, a wrong call, or a model type that exists twice.
`explain_own_class` explains an error about a user's class that extends an indexed one. Most explanations name the
releases that have the name, the calling package, or the release to take. Some tests use an index of small packages, the
others the index in the wheel ("the shipped index"). For triage, which reports explanations, see
test_triage_version_skew.py.
"""

import pytest

from diagnostics.api_index.explain import LoggedFacts, explain_missing, explain_own_class
from tests.case_files import each_case, read_cases

ERRORS = read_cases(__file__, "explained_errors.yaml")


CLASH = "ValueError: 'aimv2' is already used by a Transformers config, pick another name."


def test_error_of_a_model_type_that_transformers_has_is_explained():
    """It names the releases that have the type, the caller's releases and line, and the changes."""
    explanation = explain_missing(CLASH, LoggedFacts({"vllm": "0.9.2", "transformers": "4.55.0"}))
    assert explanation.changes == ("transformers<=4.53.3", "vllm>=0.10.0")
    assert explanation.sentences == (
        "transformers has the model type 'aimv2' itself from 4.54.0 to 5.24.0. The installed transformers 4.55.0 is too"
        " new. vllm 0.9.0 to 0.9.2 registers it (vllm/transformers_utils/configs/ovis.py:76)."
    )


@pytest.mark.parametrize("case", ERRORS["small_index"], ids=lambda case: case["message"])
def test_missing_name_or_argument_is_explained(index, case):
    """The explanation has the caller, whether the release in use is too new or too old, and the releases to take."""
    installed = {"vllm": case["installed"]} if case["installed"] else {}
    explanation = explain_missing(case["message"], LoggedFacts(installed))
    assert (explanation.direction, list(explanation.changes)) == (case["direction"], case["changes"])
    assert explanation.callers[0].package == "trl"


def test_advice_for_an_argument_that_every_release_requires_is_to_pass_it(make_index):
    """Another release would not help, so no change is proposed."""
    files = {"vllm/cache.py": "class Cache:\n    def grow(self, by): ...\n"}
    make_index(files, files)
    error = "TypeError: Cache.grow() missing 1 required positional argument: 'by'"
    explanation = explain_missing(error, LoggedFacts(caller="vllm"))
    assert explanation.changes == ()
    assert explanation.advice.startswith("Pass it in the call")


@pytest.mark.parametrize("case", ERRORS["class_without_module"], ids=lambda case: case["message"])
def test_class_or_function_is_found_by_its_name(make_index, case):
    """A class or function that an error names without its module is found; an undecidable error is not explained."""
    make_index(*case["releases"])
    explanation = explain_missing(case["message"], LoggedFacts(caller=case.get("caller", "")))
    assert (explanation and explanation.headline) == case["headline"]


@pytest.mark.parametrize("case", ERRORS["shipped_index"], ids=lambda case: case["message"])
def test_error_is_explained_by_the_shipped_index(case):
    """The explanation has the changes, and says whether the release in use is too old, too new, or neither."""
    explanation = explain_missing(case["message"], LoggedFacts(case["installed"], case["caller"]))
    assert (explanation.direction, list(explanation.changes)) == (case["direction"], case["changes"])
    assert explanation.headline == case.get("headline", explanation.headline)


@pytest.mark.parametrize("case", ERRORS["own_class"], ids=lambda case: f"{case['message']} {case['caller']}")
def test_error_about_a_class_of_the_user_is_explained_by_the_class_that_it_extends(case):
    """The name of a user's class or function shows which indexed one it extends or replaces.

    The last frame shows whether the user's code or the package must change. `explain_missing` does not explain it.
    """
    log = LoggedFacts(case["installed"], case["caller"])
    assert explain_missing(case["message"], log) is None
    explanation = explain_own_class(case["message"], log)
    assert (explanation.headline, list(explanation.changes)) == (case["headline"], case["changes"])


@each_case(ERRORS["unknown_classes"])
def test_class_of_the_user_without_a_known_relative_is_not_explained(message):
    assert explain_own_class(message, LoggedFacts()) is None


def test_newer_caller_is_recommended(index):
    """If the next release of the caller does not use the missing name, it is recommended too."""
    message = "TypeError: LLM.__init__() got an unexpected keyword argument 'device'"
    explanation = explain_missing(message, LoggedFacts({"vllm": "0.2", "trl": "1.0"}))
    assert explanation.changes == ("vllm<=0.1", "trl>=1.1")


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: x",
        "ImportError: cannot import name 'a' from 'other.b'",
        "ModuleNotFoundError: No module named 'ray._private.ray_logging.filters'",
        "x" * 10**6,
        CLASH.replace("aimv2", "mine"),
        # A part of a name, which no release has.
        "LoraConfig.__init__() got an unexpected keyword argument 'eva_conf",
    ],
)
def test_message_without_a_known_name_is_not_explained(message):
    assert explain_missing(message, LoggedFacts()) is None
