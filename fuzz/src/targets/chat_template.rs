//! Chat templates of models, as GGUF files carry them.

use super::{fixture, text};
use crate::Target;
use crate::mutate::gguf::Gguf;
use crate::mutate::{Random, jinja};
use layerscope_engine::{GgufFile, Message, PromptText, Tokenizer};
use std::sync::LazyLock;

/// A template renders a plain prompt and a conversation.
pub const TARGET: Target = Target { name: "chat_template", read, mutate, seeds };

const KEY: &str = "tokenizer.chat_template";

/// A file with a small vocabulary.
static FILE: LazyLock<Gguf> =
    LazyLock::new(|| Gguf::parse(&fixture("tokenizer/mistral-spm.gguf")).expect("a GGUF file"));

fn read(input: &[u8]) {
    let Some(template) = text(input) else { return };
    let mut file = FILE.clone();
    file.set_text(KEY, template);
    let file = GgufFile::in_memory("fuzzed.gguf", file.to_bytes()).expect("a GGUF file");
    let Ok(tokenizer) = Tokenizer::from_gguf(file.metadata(), file.path()) else { return };
    let messages = [("system", "Be brief."), ("user", "Hi\n{{ x }}"), ("assistant", ""), ("user", "四 < &")];
    let messages = messages.map(|(role, content)| Message::new(role, content)).to_vec();
    for prompt in [PromptText::Plain("Hi".to_owned()), PromptText::Messages(messages)] {
        let _ = tokenizer.render_prompt(&prompt);
    }
}

fn mutate(input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    Some(jinja::changed(text(input)?, random).into_bytes())
}

fn seeds() -> Vec<Vec<u8>> {
    let of_models =
        ["mistral-spm", "gemma-spm", "llama-bpe", "qwen2", "smollm"].into_iter().filter_map(|name| {
            let file = GgufFile::in_memory(name, fixture(&format!("tokenizer/{name}.gguf"))).ok()?;
            Some(file.metadata().get(KEY)?.as_str()?.as_bytes().to_vec())
        });
    let own = [
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message['content']|trim }}<|im_end|>\n{% endfor %}",
        "{%- set ns = namespace(x=0) -%}{%- for m in messages -%}{%- set ns.x = ns.x + 1 -%}{%- endfor -%}{{ ns.x }}",
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}",
        "{% macro show(x) %}{{ x|tojson(indent=2) }}{% endmacro %}{{ show(messages) }}{{ strftime_now('%d %b %Y') }}",
    ];
    of_models.chain(own.map(|template| template.as_bytes().to_vec())).collect()
}
