//! The Hugging Face cache: `models--owner--name/snapshots/COMMIT`, with branches in `refs`.

use super::folders::{checkpoint_at, gguf};
use super::{LocalModel, Origin, entries};
use crate::hub::is_commit;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Complete checkpoints and GGUF files of every repository, `main` first; the same weights are listed once.
pub(super) fn models_of(cache: &Path) -> Vec<LocalModel> {
    entries(cache)
        .into_iter()
        .filter_map(|(folder, path)| {
            let id = folder.strip_prefix("models--")?.replacen("--", "/", 1);
            Some(models_of_repository(&id, &path))
        })
        .flatten()
        .collect()
}

fn models_of_repository(id: &str, repository: &Path) -> Vec<LocalModel> {
    let mut revisions = references(&repository.join("refs"), "");
    revisions.sort_by_key(|(name, _)| name != "main");
    let commits =
        entries(&repository.join("snapshots")).into_iter().map(|(commit, _)| (commit.clone(), commit));
    revisions.extend(commits);

    let (mut models, mut commits, mut weights) = (vec![], HashSet::new(), HashSet::new());
    for (revision, commit) in revisions {
        if !commits.insert(commit.clone()) {
            continue;
        }
        let at = if revision == "main" { String::new() } else { format!("@{revision}") };
        for model in models_of_snapshot(id, &at, &repository.join("snapshots").join(&commit)) {
            if weights.insert(identity(&model)) {
                models.push(model);
            }
        }
    }
    models
}

/// Names and commits of the files in `refs`; refs of pull requests lie in subfolders.
fn references(folder: &Path, prefix: &str) -> Vec<(String, String)> {
    let mut references = vec![];
    for (name, path) in entries(folder).into_iter().filter(|(name, _)| !name.starts_with('.')) {
        let name = format!("{prefix}{name}");
        match layerscope_files::read_text(&path) {
            Ok(commit) if is_commit(commit.trim()) => references.push((name, commit.trim().to_owned())),
            Err(_) if name.matches('/').count() < 3 => references.extend(references_in(&path, &name)),
            _ => {}
        }
    }
    references
}

fn references_in(folder: &Path, name: &str) -> Vec<(String, String)> {
    references(folder, &format!("{name}/"))
}

fn models_of_snapshot(id: &str, at: &str, snapshot: &Path) -> Vec<LocalModel> {
    let mut models: Vec<LocalModel> =
        checkpoint_at(format!("{id}{at}"), snapshot.to_owned(), Origin::HuggingFace).into_iter().collect();
    for (name, path) in entries(snapshot) {
        let file = gguf(&format!("{id}/{name}"), &path, Origin::HuggingFace);
        let deeper = if file.is_none() { entries(&path) } else { vec![] };
        models.extend(file);
        models.extend(
            deeper
                .iter()
                .filter_map(|(file, path)| gguf(&format!("{id}/{name}/{file}"), path, Origin::HuggingFace)),
        );
    }
    for model in models.iter_mut().filter(|model| model.path != snapshot) {
        model.name.push_str(at);
    }
    models
}

/// The blob of the weights, which snapshots of several commits share.
fn identity(model: &LocalModel) -> PathBuf {
    let weights = crate::checkpoint::weights(&model.path).ok().and_then(|weights| weights.into_iter().next());
    let path = weights.unwrap_or_else(|| model.path.clone());
    path.canonicalize().unwrap_or(path)
}
