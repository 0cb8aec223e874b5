//! Names of GGUF files: quantisation, parts of a split model, vision projectors.

/// Whether this is the name of a GGUF file.
pub(crate) fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.as_bytes()[name.len() - 5..].eq_ignore_ascii_case(b".gguf")
}

/// Whether a GGUF file's name is that of a language model, not of a vision projector or an importance matrix.
pub(crate) fn is_language_model(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    is_gguf(name)
        && !file.contains("mmproj")
        && !file.starts_with("imatrix")
        && !file.ends_with("imatrix.gguf")
}

/// Number and count of a part, from `NAME-00001-of-00003.gguf`.
pub(crate) fn split_part(name: &str) -> Option<(u32, u32)> {
    let stem = if is_gguf(name) { &name[..name.len() - 5] } else { return None };
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let part = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
    Some((part(number)?, part(count)?))
}

/// Whether a name contains the quantisation, e.g. `Q4_K_M`, as a separate word in any case.
pub(crate) fn has_quantization(name: &str, quantization: &str) -> bool {
    let (name, wanted) = (name.to_lowercase(), quantization.to_lowercase());
    let begins = |at: usize| at == 0 || name[..at].ends_with(['-', '.', '_', '/']);
    let ends = |at: usize| at == name.len() || name[at..].starts_with(['-', '.', '/']);
    !wanted.is_empty() && name.match_indices(&wanted).any(|(at, _)| begins(at) && ends(at + wanted.len()))
}

/// Whether a path stays within a repository: no `..`, no root, no backslash.
pub(crate) fn stays_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', ':', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_quantisation_is_a_word_of_the_name() {
        assert!(has_quantization("gemma-3-270m-it-Q4_K_M.gguf", "q4_k_m"));
        assert!(has_quantization("model.Q8_0.gguf", "Q8_0"));
        assert!(has_quantization("BF16/model-00001-of-00002.gguf", "BF16"));
        assert!(has_quantization("Qwen3-UD-Q4_K_XL.gguf", "Q4_K_XL"));
        assert!(!has_quantization("gemma-3-270m-it-Q4_K_M.gguf", "Q4_K"));
        assert!(!has_quantization("gemma-3-270m-it-IQ4_XS.gguf", "Q4_XS"));
        assert!(!has_quantization("model.gguf", ""));
    }

    #[test]
    fn parts_projectors_and_matrices_are_told_by_their_names() {
        assert_eq!(split_part("a/big-Q8_0-00002-of-00003.gguf"), Some((2, 3)));
        assert_eq!(split_part("big-2-of-3.gguf"), None);
        assert_eq!(split_part("big.gguf"), None);
        assert!(is_language_model("x/Model.GGUF"));
        assert!(!is_language_model("x/mmproj-model-f16.gguf"));
        assert!(!is_language_model("imatrix.gguf"));
        assert!(!is_language_model("é"));
    }

    #[test]
    fn paths_that_leave_are_seen() {
        assert!(stays_inside("a/b.gguf"));
        for path in ["", "/a", "../a", "a/../b", "a//b", "a\\b", "c:a", "."] {
            assert!(!stays_inside(path), "{path}");
        }
    }
}
