//! Names of folders, from what files and models are called.

use std::collections::BTreeSet;

/// Longest name, bytes.
const LONGEST: usize = 60;

/// Gives names, none twice.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// The last part of a path or id, without these endings and without characters that file names of some system lack; with a number
    /// where it is given already.
    pub(crate) fn of(&mut self, path: &str, endings: &[&str]) -> String {
        let last = path.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or_default();
        let stem = endings.iter().find_map(|ending| last.strip_suffix(ending)).unwrap_or(last);
        let allowed = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
        let name: String = stem
            .chars()
            .map(|character| if allowed(character) { character } else { '-' })
            .take(LONGEST)
            .collect();
        let name = match name.trim_matches(['.', '-']) {
            "" => "unnamed".to_owned(),
            name => name.to_owned(),
        };
        // Some systems' file names do not tell capitals.
        let is_new = |name: &String| !self.0.contains(&name.to_lowercase());
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let name = std::iter::once(name.clone()).chain(numbered).find(is_new).unwrap_or(name);
        self.0.insert(name.to_lowercase());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_short_and_differ() {
        let mut names = Names::default();
        let given = [
            "models/a.gguf",
            "other/A.gguf",
            "owner/name:Q4_K_M",
            "checkpoints/step-100/",
            "../..",
            "a b.gguf",
        ];
        let found = given.map(|path| names.of(path, &[".gguf"]));
        assert_eq!(found, ["a", "A-2", "name-Q4_K_M", "step-100", "unnamed", "a-b"]);
    }

    proptest! {
        #[test]
        fn any_texts_make_file_names(texts in proptest::collection::vec(".*", 1..20)) {
            let mut names = Names::default();
            let found: Vec<String> = texts.iter().map(|text| names.of(text, &[".gguf"])).collect();
            let distinct: BTreeSet<String> = found.iter().map(|name| name.to_lowercase()).collect();
            prop_assert_eq!(distinct.len(), found.len());
            for name in found {
                prop_assert!(!name.is_empty() && name.len() < 80 && !name.starts_with(['.', '-']), "{}", name);
                prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "{}", name);
            }
        }
    }
}
