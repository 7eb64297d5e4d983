"""The loop of `generate()` on few tokens against the ordinary one on all V, and against the distribution."""

import math

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    GenerationConfig,
    GenerationMixin,
    GPT2Config,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from lm.decode import Rules
from lm.model import CompressedLM, CompressedLMConfig

V = 400
ORDINARY = {"custom_generate": GenerationMixin._sample}
SPARSE = ["grouped", "grouped-linear", "grouped-low-rank", "adaptive"]


@pytest.fixture
def make():
    def make(head="grouped-linear", sharpness=0.3) -> CompressedLM:
        torch.manual_seed(0)
        backbone = GPT2Config(
            vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
        )
        order = torch.randperm(V, generator=torch.Generator().manual_seed(1))
        config = CompressedLMConfig(text_config=backbone, head=head, ordered=True)
        model = CompressedLM(config, order=order)
        with torch.no_grad():
            for parameter in model.head.parameters():
                parameter.add_(sharpness * torch.randn_like(parameter))
        return model.eval()

    return make


@pytest.fixture
def prompts():
    return torch.randint(1, V, (3, 6), generator=torch.Generator().manual_seed(2))


GREEDY = {
    "plain": {},
    "ends": {"eos_token_id": list(range(0, V, 3))},
    "forbidden ends": {"eos_token_id": list(range(0, V, 2)), "min_new_tokens": 5},
    "min length": {"eos_token_id": list(range(0, V, 2)), "min_length": 9},
    "penalty": {"repetition_penalty": 1.7},
    "penalty and ends": {"repetition_penalty": 1.7, "eos_token_id": [1, 2, 3], "min_new_tokens": 7},
    "reward": {"repetition_penalty": 0.5},
    "no repeats": {"no_repeat_ngram_size": 2},
    "no cache": {"use_cache": False},
    "several": {"num_return_sequences": 1, "max_time": 100.0},
}


@pytest.mark.parametrize("settings", GREEDY.values(), ids=GREEDY)
@pytest.mark.parametrize("head", SPARSE)
def test_greedy_decoding_writes_the_same_tokens(make, prompts, head, settings):
    model = make(head)
    mask = torch.ones_like(prompts)
    mask[0, :2] = 0  # padded on the left
    options = {
        "max_new_tokens": 12,
        "do_sample": False,
        "pad_token_id": 0,
        "attention_mask": mask,
        **settings,
    }
    assert torch.equal(model.generate(prompts, **options), model.generate(prompts, **options, **ORDINARY))


SAMPLING = {
    "plain": {"top_k": 0},
    "top-k": {"top_k": 20},
    "cool top-k": {"top_k": 20, "temperature": 0.6},
    "hot top-k": {"top_k": 20, "temperature": 1.8},
    "top-p": {"top_k": 0, "top_p": 0.7},
    "min-p": {"top_k": 0, "min_p": 0.1},
    "all of them": {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8},
    "penalty": {"top_k": 20, "repetition_penalty": 1.4},
    "penalty and top-p": {"top_k": 40, "top_p": 0.8, "repetition_penalty": 1.4},
    "forbidden ends": {"top_k": 20, "eos_token_id": list(range(0, V, 2)), "min_new_tokens": 1},
    "forbidden ends among all": {"top_k": 0, "eos_token_id": list(range(0, V, 2)), "min_new_tokens": 1},
}


@pytest.mark.parametrize("settings", SAMPLING.values(), ids=SAMPLING)
def test_sampling_draws_from_the_same_distribution(make, prompts, settings):
    assert_same_distribution(make(), prompts, settings)


@pytest.mark.parametrize("name", ["cool top-k", "top-p", "penalty"])
def test_few_tokens_are_drawn_from_the_same_distribution(make, prompts, few_are_not_searched, name):
    assert_same_distribution(make(), prompts, SAMPLING[name])


def assert_same_distribution(model, prompts, settings):
    """Chi-square against what the processors of `transformers` make of the dense log-probabilities."""
    draws = 4000
    prompt = prompts[:1]
    options = {"do_sample": True, "max_new_tokens": 1, "pad_token_id": 0, **settings}
    dense = model.generate(prompt, return_dict_in_generate=True, output_scores=True, **options)
    expected = draws * dense.scores[0][0].softmax(-1).double()  # [V] after all processors
    torch.manual_seed(5)
    drawn = model.generate(prompt.expand(draws, -1), **options)[:, -1]
    counts = torch.bincount(drawn, minlength=V).double()
    assert counts[expected == 0].sum() == 0
    frequent = expected >= 5
    cells = [*zip(expected[frequent], counts[frequent], strict=True)]
    cells.append((expected[~frequent].sum(), counts[~frequent].sum()))
    statistic = sum((c - e) ** 2 / e for e, c in cells if e >= 5)
    freedom = sum(bool(e >= 5) for e, _ in cells) - 1
    assert freedom > 3
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


class Listener(BaseStreamer):
    def __init__(self):
        self.heard, self.ended = [], False

    def put(self, value):
        self.heard.append(value.reshape(-1).tolist())

    def end(self):
        self.ended = True


def test_a_streamer_hears_the_prompt_and_every_token(make, prompts):
    model, listener = make(), Listener()
    text = model.generate(prompts[:1], do_sample=False, max_new_tokens=5, pad_token_id=0, streamer=listener)
    assert [token for heard in listener.heard for token in heard] == text[0].tolist()
    assert len(listener.heard) == 6
    assert listener.ended


CHARACTERS = "abcdef" + "".join(map(chr, range(0x4E00, 0x4E00 + V - 6)))  # transformers tries "abcdef"


def one_character_a_token():
    """A real tokenizer, as `stop_strings` needs it."""
    tokenizer = Tokenizer(WordLevel({text: token for token, text in enumerate(CHARACTERS)}, unk_token="a"))
    tokenizer.pre_tokenizer, tokenizer.decoder = Split("", "isolated"), Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_stop_strings_and_criteria_stop(make, prompts):
    model = make()
    options = {"do_sample": False, "max_new_tokens": 10, "pad_token_id": 0, "eos_token_id": None}
    whole = model.generate(prompts[:1], **options)[0].tolist()
    tokenizer, stop = one_character_a_token(), "".join(CHARACTERS[token] for token in whole[8:10])
    stopped = model.generate(prompts[:1], stop_strings=[stop], tokenizer=tokenizer, **options)[0].tolist()
    assert stopped == whole[:10]
    criteria = [lambda ids, scores: torch.full((len(ids),), ids.shape[1] >= 9)]
    assert model.generate(prompts[:1], stopping_criteria=criteria, **options)[0].tolist() == whole[:9]


def test_a_dictionary_is_returned_if_asked_for(make, prompts):
    model = make()
    options = {"do_sample": False, "max_new_tokens": 4, "pad_token_id": 0, "return_dict_in_generate": True}
    ours, theirs = model.generate(prompts, **options), model.generate(prompts, **options, **ORDINARY)
    assert type(ours) is type(theirs)
    assert ours.keys() == theirs.keys()
    assert torch.equal(ours.sequences, theirs.sequences)
    assert ours.past_key_values.get_seq_length() == theirs.past_key_values.get_seq_length()


def test_several_continuations_of_a_prompt(make, prompts):
    torch.manual_seed(0)
    text = make().generate(
        prompts, do_sample=True, top_k=10, num_return_sequences=3, max_new_tokens=6, pad_token_id=0
    )
    assert text.shape == (9, 12)
    assert torch.equal(text[:, :6], prompts.repeat_interleave(3, 0))
    assert len(text.unique(dim=0)) > 3


@pytest.mark.parametrize(
    "settings", [*GREEDY.values(), *({"do_sample": True, **s} for s in SAMPLING.values())]
)
def test_who_needs_all_logits(make, prompts, settings, monkeypatch):
    model, rows = make(), []
    log_prob = model.head.log_prob
    monkeypatch.setattr(model.head, "log_prob", lambda hidden: rows.append(1) or log_prob(hidden))
    model.generate(prompts, **{"do_sample": False, "max_new_tokens": 2, "pad_token_id": 0, **settings})
    looks_at_all = settings.get("repetition_penalty", 1) < 1 or "no_repeat_ngram_size" in settings
    assert len(rows) == (2 if looks_at_all else 0)


def test_settings_come_from_three_places(make, prompts, monkeypatch):
    model, asked = make(), []
    log_prob = model.head.log_prob
    monkeypatch.setattr(model.head, "log_prob", lambda hidden: asked.append(1) or log_prob(hidden))
    common = {"max_new_tokens": 1, "pad_token_id": 0}
    model.generate(prompts, **common)
    assert not asked
    model.generate(prompts, GenerationConfig(no_repeat_ngram_size=2, **common))
    assert len(asked) == 1
    model.generate(prompts, logits_processor=LogitsProcessorList([lambda ids, scores: scores]), **common)
    assert len(asked) == 2
    model.generation_config.no_repeat_ngram_size = 2
    model.generate(prompts, **common)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "more", [{"output_scores": True}, {"output_logits": True}, {"output_attentions": True}]
)
def test_whoever_wants_scores_gets_all_of_them(make, prompts, more):
    model = make()
    model.backbone.config._attn_implementation = "eager"  # others return no attentions
    result = model.generate(
        prompts, max_new_tokens=2, do_sample=False, pad_token_id=0, return_dict_in_generate=True, **more
    )
    given = result[next(iter(more)).removeprefix("output_")]
    assert len(given) == 2
    if "output_attentions" not in more:
        assert given[0].shape == (3, V)


def test_half_precision_gets_all_logits(make, prompts, monkeypatch):
    model, asked = make(), []
    log_prob = model.head.log_prob
    monkeypatch.setattr(model.head, "log_prob", lambda hidden: asked.append(1) or log_prob(hidden))
    options = {"max_new_tokens": 1, "pad_token_id": 0}
    with torch.autocast("cpu", torch.bfloat16):
        model.generate(prompts, **options)
    assert len(asked) == 1
    model.bfloat16().generate(prompts, **options)
    assert len(asked) == 2


PENALTY, COOL = RepetitionPenaltyLogitsProcessor(1.5), TemperatureLogitsWarper(0.5)
K, P, LOW = TopKLogitsWarper(7), TopPLogitsWarper(0.9), MinPLogitsWarper(0.1)
LONG = MinLengthLogitsProcessor(4, 0)


@pytest.mark.parametrize(
    ("processors", "do_sample", "are_known"),
    [
        ([], False, True),
        ([PENALTY], False, True),
        ([PENALTY, LONG, COOL, K, P, LOW], True, True),
        ([COOL, P, LOW], True, True),
        ([RepetitionPenaltyLogitsProcessor(0.9)], False, False),
        ([PENALTY, COOL], True, False),  # without top-k all V must be weighed
        ([K, COOL], True, False),  # in another order
        ([K, K], True, False),
        ([NoRepeatNGramLogitsProcessor(2)], False, False),
        ([lambda ids, scores: scores], True, False),
    ],
)
def test_rules(processors, do_sample, are_known):
    rules = Rules.read(processors, do_sample)
    assert (rules is not None) == are_known
    if rules is not None:
        assert rules.temperature == (0.5 if COOL in processors else 1.0)
        assert rules.top_k == (7 if K in processors else None)
        assert rules.top_p == (0.9 if P in processors else None)
        assert rules.min_p == (0.1 if LOW in processors else None)
        assert rules.min_length == (4 if LONG in processors else 0)
