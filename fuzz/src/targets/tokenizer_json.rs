//! A checkpoint's `tokenizer.json`.

use super::fixture;
use crate::mutate::json;
use crate::{Target, scratch};
use layerscope_engine::Tokenizer;

/// A tokenizer encodes and decodes.
pub const TARGET: Target = Target { name: "tokenizer_json", read, mutate: json::changed, seeds };

fn read(input: &[u8]) {
    let folder = scratch::folder([("tokenizer.json", input)]);
    if let Ok(tokenizer) = Tokenizer::from_directory(folder.path()) {
        let tokens = tokenizer.encode("one 2  drei 四\n<s> <|im_end|>").unwrap_or_default();
        let _ = tokenizer.decode(&tokens);
        let mut stream = tokenizer.stream(true);
        for token in tokens {
            let _ = tokenizer.token_text(token);
            let _ = stream.push(token);
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let names = ["gemma-spm", "gpt-2", "llama-spm", "mistral-spm", "smollm"];
    names.map(|name| fixture(&format!("tokenizer/{name}.tokenizer.json"))).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_tokenizers() {
        let is_one = |seed: &Vec<u8>| {
            let folder = scratch::folder([("tokenizer.json", seed.as_slice())]);
            Tokenizer::from_directory(folder.path()).is_ok()
        };
        assert!(seeds().iter().all(is_one));
    }
}
