"""lm-evaluation-harness on `layerscope serve`, under any policy: likelihoods go to /v1/score, which knows where the prompt ends."""

import json
import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import handle_stop_sequences
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"layerscope.lm_eval needs {error.name}: pip install 'layerscope[lm-eval]'", name=error.name) from None


@register_model("layerscope")
class Layerscope(LM):
    """`base_url` is that of the server, `policy` any that it has (commas as `%2C`), `model` the served name where there is a choice.

    LAYERSCOPE_API_KEY is sent as key. `concurrency` requests are under way at once.
    """

    def __init__(self, base_url="http://127.0.0.1:8080", policy="full", model=None, concurrency=8, timeout=3600, max_gen_toks=256, **_):
        super().__init__()
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.policy = policy.replace("%2C", ",")
        self.model = model
        self.timeout = float(timeout)
        self.max_gen_toks = int(max_gen_toks)
        self.pool = ThreadPoolExecutor(int(concurrency))
        self.info = self.ask("/tokenizer_info")

    def ask(self, path, body=None):
        """The answer to a request, or the server's own sentence as an error."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('LAYERSCOPE_API_KEY', '')}"}
        data = None if body is None else json.dumps({**({"model": self.model} if self.model else {}), **body}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.base_url + path, data, headers), timeout=self.timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            try:
                sentence = json.load(error)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                sentence = str(error)
            raise RuntimeError(f"{self.base_url}{path}: {sentence}") from None

    def tokens(self, text):
        return self.ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    @property
    def prefix(self):
        """The token that stands before a text without context."""
        return self.info["eos_token_id"] if self.info["bos_token_id"] is None else self.info["bos_token_id"]

    def all(self, work, items, disable_tqdm, label):
        return list(tqdm(self.pool.map(work, items), total=len(items), disable=disable_tqdm, desc=label))

    def score(self, context, continuations):
        answer = self.ask("/v1/score", {"policy": self.policy, "context": context, "continuations": continuations})
        return [(result["logprob"], result["is_greedy"]) for result in answer["results"]]

    def loglikelihood(self, requests, disable_tqdm=False):
        # The choices of an item share its prompt, which runs once.
        groups = {}
        for index, request in enumerate(requests):
            groups.setdefault(request.args[0], []).append(index)

        def work(group):
            context, indices = group
            continuations = [requests[index].args[1] for index in indices]
            if context == "":
                return self.score([self.prefix], [self.tokens(text) for text in continuations])
            return self.score(context, continuations)

        found = self.all(work, list(groups.items()), disable_tqdm, "likelihoods")
        results = [None] * len(requests)
        for indices, scores in zip(groups.values(), found):
            for index, score in zip(indices, scores):
                results[index] = score
                self.cache_hook.add_partial("loglikelihood", requests[index].args, score)
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        if self.policy != "full":
            raise ValueError(
                f"perplexity of whole texts has no prompt that {self.policy} could drop a part of: use policy=full, or a task with contexts"
            )

        def work(request):
            windows = get_rolling_token_windows(self.tokens(request.args[0]), self.prefix, self.info["max_model_len"] - 1, 1)
            return sum(self.score(*(context, [more]))[0][0] for context, more in map(make_disjoint_window, windows))

        return self.all(work, requests, disable_tqdm, "texts")

    def generate_until(self, requests, disable_tqdm=False):
        def work(request):
            context, settings = request.args
            settings = dict(settings)
            sampled = settings.pop("do_sample", False)
            temperature = settings.pop("temperature", 1.0 if sampled else 0.0)
            body = {
                "policy": self.policy,
                "prompt": context,
                "max_tokens": settings.pop("max_gen_toks", self.max_gen_toks),
                "stop": handle_stop_sequences(settings.pop("until", None), None),
                "temperature": temperature if sampled else 0.0,
                "seed": 1234,
            }
            text = self.ask("/v1/completions", {**body, **{key: settings[key] for key in ("top_p", "top_k") if key in settings}})
            text = text["choices"][0]["text"]
            self.cache_hook.add_partial("generate_until", request.args, text)
            return text

        return self.all(work, requests, disable_tqdm, "texts")

    @property
    def tokenizer_name(self):
        return f"{self.base_url} {self.model or ''}".strip().replace("/", "__")

    def chat_template(self, chat_template=False):
        return self.info["chat_template"] or ""

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        if not add_generation_prompt:
            raise ValueError("the server writes prompts up to where the assistant speaks; leave away what continues a turn")
        return self.ask("/detokenize", {"tokens": self.ask("/tokenize", {"messages": chat_history})["tokens"]})["prompt"]
