//! A model as a folder of files: which files belong to it, and whether all exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Lists the shards of weights.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Weights in one file.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The files of a model besides its weights.
pub(crate) const COMPANIONS: [&str; 8] = [
    CONFIG,
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The shards that an index lists, or what is wrong with the index.
pub(crate) fn shards(index: &str) -> Result<BTreeSet<String>, String> {
    let json: serde_json::Value =
        serde_json::from_str(index).map_err(|e| format!("{INDEX} is not valid JSON ({e})"))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let names = map.ok_or_else(|| format!("`weight_map` is missing from {INDEX}"))?.values();
    let shards = names
        .map(|name| match name.as_str() {
            Some(name) if is_shard(name) => Ok(name.to_owned()),
            _ => Err(format!("{INDEX} names {name}, which is no safetensors file of the same folder")),
        })
        .collect::<Result<BTreeSet<_>, _>>()?;
    if shards.is_empty() { Err(format!("{INDEX} lists no file")) } else { Ok(shards) }
}

fn is_shard(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

/// The weight files of a complete folder, or what is missing or wrong.
pub(crate) fn weights(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let there = |name: &str| {
        let path = folder.join(name);
        if path.is_file() { Ok(path) } else { Err(format!("{name} is missing")) }
    };
    there(CONFIG)?;
    there(TOKENIZER)?;
    if let Ok(index) = there(INDEX) {
        let index =
            layerscope_files::read_text(&index).map_err(|e| format!("{INDEX} cannot be read ({e})"))?;
        return shards(&index)?.iter().map(|shard| there(shard)).collect();
    }
    let mut weights: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors") && path.is_file())
        .collect();
    weights.sort();
    if weights.is_empty() { Err(format!("{WEIGHTS} is missing")) } else { Ok(weights) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_files_of_its_folder_alone() {
        let index = |shard: &str| format!(r#"{{"weight_map": {{"a": "{shard}", "b": "{shard}"}}}}"#);
        assert_eq!(shards(&index("model-1.safetensors")).unwrap().len(), 1);
        for wrong in ["../x.safetensors", "/x.safetensors", "x.bin", ".safetensors", "a/x.safetensors"] {
            assert!(shards(&index(wrong)).unwrap_err().contains(wrong));
        }
        for wrong in ["", "[]", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#] {
            assert!(shards(wrong).unwrap_err().contains(INDEX), "{wrong}");
        }
    }

    #[test]
    fn a_folder_is_complete_with_everything_its_index_lists() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let missing = || weights(folder.path()).unwrap_err();
        assert!(missing().contains(CONFIG));
        write(CONFIG, "{}");
        assert!(missing().contains(TOKENIZER));
        write(TOKENIZER, "{}");
        assert!(missing().contains(WEIGHTS));
        write(INDEX, r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#);
        write("a.safetensors", "");
        assert!(missing().contains("b.safetensors"));
        write("b.safetensors", "");
        assert_eq!(weights(folder.path()).unwrap().len(), 2);
    }
}
