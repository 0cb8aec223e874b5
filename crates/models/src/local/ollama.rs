//! Ollama's store: one manifest per name and tag, which lists blobs; one of them is a GGUF file.

use super::{LocalModel, ModelFormat, Origin, entries, file_size};
use serde::Deserialize;
use std::path::Path;

/// Media type of language models in GGUF.
const MODEL: &str = "application/vnd.ollama.image.model";
/// Ollama's own registry, which is left out of names.
const REGISTRY: &str = "registry.ollama.ai";
/// The default owner in it, also left out of names.
const LIBRARY: &str = "library";

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

/// The models of `folder/manifests/REGISTRY/OWNER/NAME/TAG`.
pub(super) fn models_of(folder: &Path) -> Vec<LocalModel> {
    let mut models = vec![];
    for (registry, path) in entries(&folder.join("manifests")) {
        for (owner, path) in entries(&path) {
            for (name, path) in entries(&path) {
                for (tag, manifest) in entries(&path) {
                    models.extend(model(folder, &full_name(&registry, &owner, &name, &tag), &manifest));
                }
            }
        }
    }
    models
}

fn full_name(registry: &str, owner: &str, name: &str, tag: &str) -> String {
    match (registry, owner) {
        (REGISTRY, LIBRARY) => format!("{name}:{tag}"),
        (REGISTRY, _) => format!("{owner}/{name}:{tag}"),
        _ => format!("{registry}/{owner}/{name}:{tag}"),
    }
}

fn model(folder: &Path, name: &str, manifest: &Path) -> Option<LocalModel> {
    // A manifest has a few hundred bytes; a large file is not a manifest.
    if file_size(manifest)? > 1 << 20 {
        return None;
    }
    let manifest: Manifest = serde_json::from_slice(&layerscope_files::read(manifest).ok()?).ok()?;
    let mut layers = manifest.layers.into_iter().filter(|layer| layer.media_type == MODEL);
    let (layer, more) = (layers.next()?, layers.next());
    let digest = layer.digest.strip_prefix("sha256:")?;
    // Several layers of this type are parts of a split model.
    if more.is_some() || digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let path = folder.join("blobs").join(format!("sha256-{digest}"));
    let bytes = file_size(&path)?;
    Some(LocalModel { name: name.to_owned(), origin: Origin::Ollama, path, bytes, format: ModelFormat::Gguf })
}
