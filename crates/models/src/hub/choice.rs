//! Chooses the files of the requested model in a repository.

use crate::checkpoint::{CONFIG, INDEX, TOKENIZER, WEIGHTS};
use crate::file_names::{has_quantization, is_language_model, split_part};
use crate::reference::Wanted;
use crate::text::{bytes, list, near};
use crate::{Error, Result};

/// The chosen model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This GGUF file.
    Gguf(String),
    /// The safetensors checkpoint.
    Checkpoint,
}

/// The preferred quantisation among several GGUF files.
const USUAL_QUANTIZATION: &str = "Q4_K_M";

/// Chooses by the names and sizes of a repository's files; error messages begin with `whose`.
pub(crate) fn choose(whose: &str, wanted: &Wanted, files: &[(String, u64)]) -> Result<Choice> {
    let models: Vec<&(String, u64)> = files.iter().filter(|(name, _)| is_language_model(name)).collect();
    match wanted {
        Wanted::File(file) => named(whose, file, files),
        Wanted::Quantization(quantization) => {
            let of_it: Vec<_> =
                models.iter().copied().filter(|(name, _)| has_quantization(name, quantization)).collect();
            one_of(&of_it).unwrap_or_else(|| {
                let problem = if of_it.is_empty() { "has no GGUF file" } else { "has several GGUF files" };
                let shown = if of_it.is_empty() { &models } else { &of_it };
                Err(Error::input(format!("{whose} {problem} with {quantization}; {}", there_are(shown))))
            })
        }
        Wanted::Any if is_checkpoint(files) => Ok(Choice::Checkpoint),
        Wanted::Any if models.is_empty() => Err(no_model(whose, files)),
        Wanted::Any => {
            let usual: Vec<_> = models
                .iter()
                .copied()
                .filter(|(name, _)| has_quantization(name, USUAL_QUANTIZATION))
                .collect();
            one_of(&models).or_else(|| one_of(&usual)).unwrap_or_else(|| {
                Err(Error::input(format!(
                    "{whose} has several GGUF files; name one as /file or its type as :Q8_0; {}",
                    there_are(&models)
                )))
            })
        }
    }
}

/// The choice if there is only one: a single file, or the parts of one split model, which is an error.
fn one_of(models: &[&(String, u64)]) -> Option<Result<Choice>> {
    let (name, _) = models.first()?;
    match split_part(name) {
        Some((_, count)) if models.iter().all(|(other, _)| same_split(name, other)) => {
            Some(Err(split(name, count)))
        }
        None if models.len() == 1 => Some(Ok(Choice::Gguf(name.clone()))),
        _ => None,
    }
}

fn same_split(one: &str, other: &str) -> bool {
    let whole =
        |name: &str| split_part(name).map(|_| name[..name.len() - "-00001-of-00001.gguf".len()].to_owned());
    whole(one).is_some() && whole(one) == whole(other)
}

fn split(name: &str, count: u32) -> Error {
    let whole = &name[..name.len() - "-00001-of-00001.gguf".len()];
    let file = whole.rsplit('/').next().unwrap_or(whole);
    Error::input(format!(
        "{whole} is split into {count} files; fetch them by other means, join them with \
         `llama-gguf-split --merge {file}-00001-of-{count:05}.gguf {file}.gguf`, and give the path of that"
    ))
}

fn named(whose: &str, file: &str, files: &[(String, u64)]) -> Result<Choice> {
    if !files.iter().any(|(name, _)| name == file) {
        let near: Vec<String> =
            near(file, files.iter().map(|(name, _)| name.as_str())).into_iter().map(str::to_owned).collect();
        let near =
            if near.is_empty() { String::new() } else { format!("; did you mean {}?", list(&near, 3)) };
        return Err(Error::input(format!("{whose} has no file {file}{near}")));
    }
    match split_part(file) {
        Some((_, count)) => Err(split(file, count)),
        None => Ok(Choice::Gguf(file.to_owned())),
    }
}

fn is_checkpoint(files: &[(String, u64)]) -> bool {
    let has = |wanted: &str| files.iter().any(|(name, _)| name == wanted);
    has(CONFIG) && has(TOKENIZER) && (has(INDEX) || has(WEIGHTS))
}

fn no_model(whose: &str, files: &[(String, u64)]) -> Error {
    let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let missing: Vec<String> =
        [(CONFIG, has(CONFIG)), (TOKENIZER, has(TOKENIZER)), (WEIGHTS, has(WEIGHTS) || has(INDEX))]
            .into_iter()
            .filter(|(_, there)| !there)
            .map(|(name, _)| name.to_owned())
            .collect();
    let there =
        if names.is_empty() { "it is empty".to_owned() } else { format!("it has {}", list(&names, 12)) };
    Error::input(format!(
        "{whose} has neither a GGUF file nor a whole safetensors model ({} missing); {there}",
        list(&missing, 3)
    ))
}

fn there_are(models: &[&(String, u64)]) -> String {
    let named: Vec<String> = models.iter().map(|(name, size)| format!("{name} ({})", bytes(*size))).collect();
    if named.is_empty() { "there are none".to_owned() } else { format!("there are {}", list(&named, 40)) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn choice(wanted: &Wanted, names: &[&str]) -> std::result::Result<Choice, String> {
        let files: Vec<(String, u64)> = names.iter().map(|name| ((*name).to_owned(), 3 << 20)).collect();
        choose("o/n", wanted, &files).map_err(|error| error.to_string())
    }

    fn gguf(name: &str) -> std::result::Result<Choice, String> {
        Ok(Choice::Gguf(name.to_owned()))
    }

    #[test]
    fn without_more_the_checkpoint_or_the_one_or_usual_gguf_is_meant() {
        let any = |names: &[&str]| choice(&Wanted::Any, names);
        let checkpoint = [CONFIG, TOKENIZER, WEIGHTS, "x.gguf", "pytorch_model.bin"];
        assert_eq!(any(&checkpoint), Ok(Choice::Checkpoint));
        assert_eq!(any(&[CONFIG, TOKENIZER, INDEX]), Ok(Choice::Checkpoint));
        assert_eq!(any(&["x-F16.gguf", "mmproj-x.gguf"]), gguf("x-F16.gguf"));
        assert_eq!(any(&["x-F16.gguf", "x-Q4_K_M.gguf"]), gguf("x-Q4_K_M.gguf"));
        let several = any(&["x-F16.gguf", "x-Q8_0.gguf"]).unwrap_err();
        assert!(several.contains("x-F16.gguf (3.0 MiB), x-Q8_0.gguf (3.0 MiB)"), "{several}");
        let twice = any(&["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"]).unwrap_err();
        assert!(twice.contains("several"), "{twice}");
    }

    #[test]
    fn a_quantisation_or_file_must_be_there_once() {
        let quantization =
            |wanted: &str, names: &[&str]| choice(&Wanted::Quantization(wanted.to_owned()), names);
        let names = ["x-F16.gguf", "x-Q8_0.gguf", "mmproj-F16.gguf"];
        assert_eq!(quantization("f16", &names), gguf("x-F16.gguf"));
        let none = quantization("Q2_K", &names).unwrap_err();
        assert!(none.contains("no GGUF file with Q2_K") && none.contains("x-Q8_0.gguf"), "{none}");
        assert!(quantization("F16", &["a-F16.gguf", "b-F16.gguf"]).unwrap_err().contains("several"));
        let file = |wanted: &str| choice(&Wanted::File(wanted.to_owned()), &names);
        assert_eq!(file("x-Q8_0.gguf"), gguf("x-Q8_0.gguf"));
        let absent = file("x-Q8_1.gguf").unwrap_err();
        assert!(absent.contains("no file x-Q8_1.gguf; did you mean x-Q8_0.gguf"), "{absent}");
    }

    #[test]
    fn split_models_are_refused_with_the_command_that_joins_them() {
        let parts = ["d/x-Q8_0-00001-of-00002.gguf", "d/x-Q8_0-00002-of-00002.gguf"];
        let wanted =
            [Wanted::Any, Wanted::Quantization("Q8_0".to_owned()), Wanted::File(parts[1].to_owned())];
        for wanted in wanted {
            let refusal = choice(&wanted, &parts).unwrap_err();
            let command = "llama-gguf-split --merge x-Q8_0-00001-of-00002.gguf x-Q8_0.gguf";
            assert!(refusal.contains(command), "{refusal}");
        }
        let with_small = [parts[0], parts[1], "x-Q4_K_M.gguf"];
        assert_eq!(choice(&Wanted::Any, &with_small), gguf("x-Q4_K_M.gguf"));
    }

    #[test]
    fn other_repositories_are_told_what_they_have() {
        let other = choice(&Wanted::Any, &[CONFIG, "pytorch_model.bin"]).unwrap_err();
        assert!(other.contains("tokenizer.json, model.safetensors missing"), "{other}");
        assert!(other.contains("it has config.json, pytorch_model.bin"), "{other}");
        assert!(choice(&Wanted::Any, &[]).unwrap_err().contains("it is empty"));
    }
}
